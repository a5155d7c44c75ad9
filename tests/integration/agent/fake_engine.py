"""An engine without a model: a control thread that answers directives and tells what it saw.

    python fake_engine.py --config FILE

A directive Copy is answered with the number of directives that this process has had, so that
a test can tell whether it took effect twice. RollForward makes it report a lost peer and a step,
Export end itself.
"""

import math
import os
import signal
import sys
import threading
from pathlib import Path

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.engine_link_pb2 import EngineEvent
from planaria.api.worker.v1.report_pb2 import (
    Copied,
    DirectiveResult,
    EngineSnapshot,
    EngineState,
    Prepared,
    Stopped,
)
from planaria_worker.engine.process.control import Control
from planaria_worker.engine_config import EngineConfig

LEAVE_SECONDS = 10.0


class FakeEngine:
    """Says that it is prepared, and then what the directives make it say."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._num_answered = 0
        self._ended = threading.Event()
        self._control = Control(
            Path(config.socket_path),
            lease_seconds=config.lease_seconds,
            snapshot=self._snapshot,
            on_directive=self._obey,
            on_lease_expired=self._end,
        )

    def _end(self, _is_over: bool) -> float:
        self._ended.set()
        return math.inf

    def run(self) -> None:
        prepared = Prepared(engine=self._snapshot(), data_digest=self._config.data_digest)
        self._answer(self._config.prepare_directive_id, prepared=prepared)
        self._control.start()
        print("listening", flush=True)
        self._ended.wait()
        self._control.take_leave(LEAVE_SECONDS)

    def _snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            engine_id=self._config.engine_id,
            job_id=self._config.job_id,
            state=EngineState.ENGINE_STATE_PARKED,
            pid=os.getpid(),
        )

    def _obey(self, directive: Directive) -> None:
        self._num_answered += 1
        kind = directive.WhichOneof("command")
        if kind == "export":
            print("last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "roll_forward":
            seen, reported = EngineEvent(), EngineEvent()
            seen.link_failed.peer_engine_id = "peer"
            reported.step_report.record.step = 7
            self._control.post(seen)
            self._control.report(reported)
        if kind == "stop":
            self._answer(directive.directive_id, stopped=Stopped())
            self._ended.set()
        else:
            self._answer(directive.directive_id, copied=Copied(bytes=self._num_answered))

    def _answer(self, directive_id: str, **outcome: Prepared | Copied | Stopped) -> None:
        result = DirectiveResult(
            directive_id=directive_id,
            **outcome,  # type: ignore[arg-type]  # one field of the oneof, by its name
        )
        self._control.post(EngineEvent(result=result))


if __name__ == "__main__":
    FakeEngine(EngineConfig.load(Path(sys.argv[2]))).run()
