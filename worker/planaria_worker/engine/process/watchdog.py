"""Notices that the training thread hangs, although the engine answers and its heartbeats go on.

A thread that waits for a peer does not hang: one engine that hangs makes all others wait. The stack
of the thread shows whether it waits, so that waiting needs no bookkeeping.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType, FrameType

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.errors import ErrorReason
from planaria_common.supervised import start_supervised_thread
from planaria_worker.engine.groups import Communicators
from planaria_worker.engine.groups.group import Work
from planaria_worker.engine.telemetry import Stopwatch, Vitals
from planaria_worker.engine.training.faults import Fault

LOOKS_PER_DEADLINE = 10
USUAL_ACTIONS = 10
"""An action that takes so many times as long as the longest one before is taken to hang; the first
one, so many times as long as all layers of the model were measured to take."""

_WAITS: frozenset[CodeType] = frozenset((Work.wait.__code__, Communicators.wait.__code__))


class Watchdog:
    """Looks at the training thread now and then; reports a hang once."""

    def __init__(
        self,
        *,
        deadline_seconds: float,
        stopwatch: Stopwatch,
        vitals: Vitals,
        report: Callable[[Fault], None],
        thread_id: int,
        model_seconds: float,
    ) -> None:
        """Starts nothing yet.

        Args:
            deadline_seconds: the least time without a finished action that is taken for a hang.
            stopwatch: that of the watched thread.
            vitals: only an engine that trains can hang.
            report: called once, from the watchdog's thread.
            thread_id: the identifier of the watched thread.
            model_seconds: what a microbatch takes in all layers of the model, forward and backward:
                no stage's pass takes longer.
        """
        self._pause_seconds = deadline_seconds / LOOKS_PER_DEADLINE
        self._stopwatch = stopwatch
        self._vitals = vitals
        self._report = report
        self._thread_id = thread_id
        self._model_seconds = model_seconds
        self._laps = -1
        self._num_looks = 0

    def start(self) -> None:
        """Begins to look; for as long as the process lives."""
        start_supervised_thread("watchdog", self._run)

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._pause_seconds):
            if (fault := self.look()) is not None:
                self._report(fault)
                return

    def look(self) -> Fault | None:
        """What hangs, if something does; call it once in a pause.

        Looks are counted, not seconds: a process that was stopped for a while has not hung.
        """
        laps = self._stopwatch.laps
        is_training = self._vitals.state == EngineState.ENGINE_STATE_TRAINING
        frame = sys._current_frames().get(self._thread_id)
        if laps != self._laps or not is_training or frame is None or _waits_for_a_peer(frame):
            self._laps, self._num_looks = laps, 0
            return None
        self._num_looks += 1
        seconds = self._num_looks * self._pause_seconds
        usual_seconds = self._stopwatch.longest_seconds or self._model_seconds
        if self._num_looks < LOOKS_PER_DEADLINE or seconds < USUAL_ACTIONS * usual_seconds:
            return None
        return _hang(frame, self._vitals.committed_steps, seconds)


def _waits_for_a_peer(frame: FrameType) -> bool:
    return any(each.f_code in _WAITS for each, _ in traceback.walk_stack(frame))


def _hang(frame: FrameType, step: int, seconds: float) -> Fault:
    where = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
    detail = f"nothing was finished for {seconds:.1f} s; it is in {where}"
    return Fault(
        reason=ErrorReason.ENGINE_FAILED,
        message=f"step {step}: {detail}",
        metadata={"step": str(step), "detail": detail},
        is_fatal=False,
    )
