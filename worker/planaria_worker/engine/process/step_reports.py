"""Whom the training thread tells what it has done and met."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from planaria_common.clock import Clock
from planaria_common.logging import get_logger
from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.numerics.optimizer import learning_rate
from planaria_worker.engine.process.faults import Fault, fault_of
from planaria_worker.engine.recovery.fence import FencedError
from planaria_worker.engine.step.commit_messages import ExchangeMismatchError
from planaria_worker.engine.step.commit_record import CommitRecord
from planaria_worker.engine.step.training_context import EngineResources

_log = get_logger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A committed step, as the last stage of a pipeline and whoever is told of it report it."""

    record: CommitRecord
    learning_rate: float
    step_seconds: float
    seconds: dict[str, float]
    commit_time: datetime


class Listener(Protocol):
    """Who is told what is trained and met; called from any thread, never blocks."""

    def step_done(self, done: StepDone) -> None: ...

    def fault(self, generation: int, fault: Fault) -> None: ...


class StepReporter:
    """Tells a listener; of a commit that is made while the training thread rests, from another."""

    def __init__(self, resources: EngineResources, listener: Listener, clock: Clock) -> None:
        self._resources = resources
        self._listener = listener
        self._clock = clock
        self._step_started = time.perf_counter()
        self._untold: StepDone | None = None

    def step_begins(self) -> None:
        """A step is timed from here on."""
        self._step_started = time.perf_counter()

    def step_done(self, record: CommitRecord) -> None:
        """The step that began last is committed."""
        self._untold = None
        self._listener.step_done(self._done(record))

    def step_noted(self, record: CommitRecord) -> None:
        """It is, and others report it, or this engine later; when fenced, at once: they may die."""
        self._untold = self._done(record)

    def tell_noted(self) -> None:
        """Reports the step that was noted last, if that is the newest and nobody did it before."""
        done, self._untold = self._untold, None
        if done is not None:
            self._listener.step_done(done)

    def met(self, error: Exception, generation: int, step: int) -> None:
        """Something broke; nobody need be told if it was a fence that broke it."""
        is_torn_off = isinstance(error, GroupBroken | ExchangeMismatchError)
        is_fenced = is_torn_off and self._resources.fence.is_fenced(generation)
        if isinstance(error, FencedError) or is_fenced:
            _log.info("fenced", generation=generation, cause=str(error))
            return
        fault = fault_of(error, step)
        _log.warning("attempt_failed", cause=fault.message, fatal=fault.is_fatal, exc_info=error)
        self._listener.fault(generation, fault)

    def _done(self, record: CommitRecord) -> StepDone:
        return StepDone(
            record=record,
            learning_rate=self._learning_rate(record.step),
            step_seconds=time.perf_counter() - self._step_started,
            seconds=self._resources.stopwatch.seconds,
            commit_time=self._clock.now(),
        )

    def _learning_rate(self, step: int) -> float:
        job = self._resources.job
        return 0.0 if job.is_closing(step) else learning_rate(job.optimizer, step)
