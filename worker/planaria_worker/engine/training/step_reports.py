"""Reports of committed steps and of faults, from the training thread."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from planaria_common.clock import Clock
from planaria_common.logging import get_logger
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.numerics.optimizer import learning_rate
from planaria_worker.engine.step.commit_messages import CommitMismatchError
from planaria_worker.engine.step.training_context import EngineResources
from planaria_worker.engine.training.faults import Fault, fault_of

_log = get_logger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A committed step, as a last stage reports it, or an engine that rolled forward."""

    record: CommitRecord
    learning_rate: float
    step_seconds: float
    commit_time: datetime


class Listener(Protocol):
    """Receives steps and faults; called from any thread, never blocks."""

    def step_done(self, done: StepDone) -> None: ...

    def fault(self, generation: int, fault: Fault) -> None: ...


class StepReporter:
    """Reports each step once: at its commit, at a fence, or when the engine rolls forward."""

    def __init__(self, resources: EngineResources, listener: Listener, clock: Clock) -> None:
        self._resources = resources
        self._listener = listener
        self._clock = clock
        self._step_started = time.perf_counter()
        self._held: StepDone | None = None

    def step_begins(self) -> None:
        """Time the step from here on."""
        self._step_started = time.perf_counter()

    def step_done(self, record: CommitRecord) -> None:
        """Report the step that began last as committed."""
        self._held = None
        self._listener.step_done(self._done(record))

    def hold_step(self, record: CommitRecord) -> None:
        """Hold the report of a committed step, which another engine makes, or this one later.

        A fence releases it, since the other engine may have died (`report_held`).
        """
        self._held = self._done(record)

    def report_held(self) -> None:
        """Report the step that is held, unless it has been reported since."""
        done, self._held = self._held, None
        if done is not None:
            self._listener.step_done(done)

    def report_fault(self, error: Exception, generation: int, step: int) -> None:
        """Report that something broke; not if a fence broke it."""
        is_torn_off = isinstance(error, GroupBroken | CommitMismatchError)
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
            commit_time=self._clock.now(),
        )

    def _learning_rate(self, step: int) -> float:
        job = self._resources.job
        return 0.0 if job.is_closing(step) else learning_rate(job.optimizer, step)
