"""The training thread: runs one task after another, and is parked between them."""

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.clock import Clock
from planaria_worker.engine.recovery.current_training import CurrentTraining
from planaria_worker.engine.step.training_context import EngineResources


class TrainingThread:
    """The engine's main thread; `submit` may be called from any thread."""

    def __init__(
        self,
        *,
        resources: EngineResources,
        current_training: CurrentTraining,
        clock: Clock,
    ) -> None:
        self._fence = resources.fence
        self._current_training = current_training
        self._vitals = current_training.vitals
        self._stopwatch = resources.stopwatch
        self._clock = clock
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.park_time = clock.now()
        """When training last ended."""

    def run(self) -> None:
        """Run submitted tasks for ever; call it on the main thread."""
        while True:
            self._tasks.get()()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task as soon as the thread is parked."""
        self._tasks.put(task)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Park the engine after training, whatever ends it."""
        try:
            yield
        finally:
            self.park()
            self._fence.end()

    def park(self) -> None:
        """Keep what the step in flight could be committed from, and enter PARKED or FINISHED."""
        self._current_training.keep_sums()
        self.park_time = self._clock.now()
        self._stopwatch.trace.event("rest")
        is_finished = self._current_training.is_finished
        self._vitals.enter(
            EngineState.ENGINE_STATE_FINISHED if is_finished else EngineState.ENGINE_STATE_PARKED
        )

    def drop_halted(self) -> None:
        """Drop a training context that was halted while the thread was parked."""
        context = self._current_training.context
        if context is not None and context.halt.is_set():
            self._current_training.drop()
