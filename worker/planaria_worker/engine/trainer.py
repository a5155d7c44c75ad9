"""The training thread: parked until it is told to take a place, then trains until it must stop.

    STARTING -> PARKED -> REBUILDING -> TRAINING -> (PARKED | FINISHED)

Whatever breaks, it ends here: the engine drops its groups, gradients and activations, keeps its
layers, and stands still until the coordinator has collected what every engine knows.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_worker.engine.commit import CommitRecord, KeptSums, RollForward, roll_forward
from planaria_worker.engine.communication import Communicators, GroupBroken
from planaria_worker.engine.exchange import ExchangeMismatchError
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.faults import Fault, fault_of
from planaria_worker.engine.fence import Fence, FencedError
from planaria_worker.engine.job import Job
from planaria_worker.engine.ledger import Ledger
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.numerics.optimizer import learning_rate
from planaria_worker.engine.peer_watch import PeerWatch
from planaria_worker.engine.place import Place, take_place
from planaria_worker.engine.plan_view import PipelinePlan, PlanError, PlanView, view_plan
from planaria_worker.engine.state import LayerStore
from planaria_worker.engine.step import CommittedStep, apply_step, run_step
from planaria_worker.engine.stopwatch import Stopwatch
from planaria_worker.engine.vitals import Vitals
from planaria_worker.models.stage import hosted_layers

_log = get_logger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """A place in a plan, as a directive gives it."""

    generation: int
    pipelines: tuple[PipelinePlan, ...]
    committed_steps: int
    store_address: str
    rebuild_timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Activated:
    """The place is taken and the first step about to begin."""

    rebuild_start_time: datetime
    resume_time: datetime
    num_communicators: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A committed step, as the last stage of a pipeline reports it."""

    record: CommitRecord
    learning_rate: float
    step_seconds: float
    seconds: dict[str, float]
    commit_time: datetime


class Listener(Protocol):
    """Who is told what the training thread meets; called from that thread, never blocks."""

    def step_done(self, done: StepDone) -> None: ...

    def fault(self, generation: int, fault: Fault) -> None: ...


class Trainer:
    """Owns the training; its public methods but `run` may be called from any thread."""

    def __init__(
        self,
        *,
        engine_id: str,
        host: str,
        job: Job,
        store: LayerStore,
        fence: Fence,
        vitals: Vitals,
        peer_watch: PeerWatch,
        listener: Listener,
        clock: Clock,
        stopwatch: Stopwatch,
        failpoints: Failpoints,
        operation_timeout_seconds: float,
    ) -> None:
        self._engine_id = engine_id
        self._host = host
        self._job = job
        self._store = store
        self._fence = fence
        self._vitals = vitals
        self._peer_watch = peer_watch
        self._listener = listener
        self._clock = clock
        self._stopwatch = stopwatch
        self._failpoints = failpoints
        self._operation_timeout_seconds = operation_timeout_seconds
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._communicators: Communicators | None = None
        self._sums: GradientSums | None = None
        self.ledger = Ledger(step=0, generation=0)
        self.last_commit: CommitRecord | None = None
        self.park_time = clock.now()

    def run(self) -> None:
        """Does what it is told, for ever; call it on the main thread."""
        while True:
            self._tasks.get()()

    def submit(self, task: Callable[[], None]) -> None:
        """Runs a task on the training thread as soon as it stands still."""
        self._tasks.put(task)

    def shut(self, reason: str) -> None:
        """Ends whatever the training thread waits for."""
        with self._lock:
            if self._communicators is not None:
                self._communicators.shut(reason)

    def peer_lost(self, engine_id: str) -> None:
        """Ends the groups that a lost peer was in: they will never carry a message again."""
        with self._lock:
            if self._communicators is not None:
                for group in list(self._communicators.groups.values()):
                    if engine_id in group.members:
                        group.shut(f"{engine_id} ended")

    def commit(self, generation: int, record: CommitRecord) -> Sequence[int]:
        """Rolls forward to a witness's record; returns the layers that could not be.

        Raises:
            FencedError: the engine has been fenced since.
            ValueError: the record is more than one step ahead.
        """
        self._fence.begin(generation)
        try:
            committed = self._vitals.committed_steps
            todo = roll_forward(record, committed_steps=committed, kept=self._kept())
            if todo is not RollForward.NOTHING:
                if todo is RollForward.APPLY and self._sums is not None:
                    apply_step(self._job, self._store, self._sums, record)
                self._enter_commit(record)
                self._rest()
            version = self._vitals.committed_steps
            return [layer for layer, held in self._store.held().items() if held != version]
        finally:
            self._fence.end()

    def activate(self, activation: Activation, when_ready: Callable[[Activated], None]) -> None:
        """Takes a place and trains until the engine must stand still.

        Args:
            activation: the place.
            when_ready: called when the first step is about to begin.

        Raises:
            FencedError: the engine has been fenced before the place was taken.
            PlanariaError: the place cannot be taken.
        """
        self._fence.begin(activation.generation)
        try:
            self._take_and_train(activation, when_ready)
        finally:
            self._rest()
            self._fence.end()

    def _take_and_train(
        self, activation: Activation, when_ready: Callable[[Activated], None]
    ) -> None:
        self._vitals.enter(EngineState.ENGINE_STATE_REBUILDING)
        start_time = self._clock.now()
        try:
            place, num_groups = self._rebuild(activation)
        except GroupBroken:
            self._fence.check(activation.generation)
            raise PlanariaError(
                ErrorReason.UNAVAILABLE, "a peer was lost while the communicators were built"
            ) from None
        self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
        when_ready(
            Activated(
                rebuild_start_time=start_time,
                resume_time=self._clock.now(),
                num_communicators=num_groups,
            )
        )
        self._train(place)

    def _rebuild(self, activation: Activation) -> tuple[Place, int]:
        view = self._view(activation)
        self._require_layers(view, activation.committed_steps)
        self._store.keep(view.hosted_layers)
        self._vitals.committed_steps = activation.committed_steps
        self.ledger = Ledger(step=activation.committed_steps, generation=activation.generation)
        self._sums = None
        self.shut("the plan changed")
        communicators = Communicators(
            engine_id=self._engine_id,
            host=self._host,
            device=self._job.device,
            operation_timeout_seconds=self._operation_timeout_seconds,
            failpoints=self._failpoints,
        )
        with self._lock:
            self._communicators = communicators
        self._fence.check(activation.generation)  # a fence from here on shuts them
        self._peer_watch.watch(view.peers)
        groups = communicators.build(
            view.groups,
            store_address=activation.store_address,
            prefix=f"{self._job.job_id}/{activation.generation}/",
            timeout_seconds=activation.rebuild_timeout_seconds,
        )
        place = take_place(
            job=self._job,
            view=view,
            generation=activation.generation,
            step=activation.committed_steps,
            store=self._store,
            groups=groups,
            fence=self._fence,
            stopwatch=self._stopwatch,
            failpoints=self._failpoints,
        )
        self._sums = place.sums
        return place, len(groups)

    def _view(self, activation: Activation) -> PlanView:
        try:
            return view_plan(
                activation.pipelines,
                self._engine_id,
                num_layers=self._job.num_layers,
                num_microbatches=self._job.num_microbatches,
                hosted_layers=lambda first, count: hosted_layers(self._job.model, first, count),
                separate_directions=self._job.device.type == "cuda",
            )
        except PlanError as error:
            raise PlanariaError(ErrorReason.INVALID_ARGUMENT, str(error)) from None

    def _require_layers(self, view: PlanView, version: int) -> None:
        missing = [x for x in view.hosted_layers if self._store.version(x) != version]
        if missing:
            names = ", ".join(map(str, missing))
            raise PlanariaError(
                ErrorReason.WRONG_STATE,
                f"layers {names} are not held in version {version}; copy them first",
                {"layers": names, "version": str(version)},
            )

    def _train(self, place: Place) -> None:
        """Steps until the job is done, everybody parks, or something breaks."""
        try:
            while self._vitals.committed_steps < self._job.num_steps:
                started = time.perf_counter()
                done = run_step(place, self._vitals.committed_steps, self._fence)
                self._enter_commit(done.record)
                if place.view.is_last:
                    self._report(done, time.perf_counter() - started)
                if done.broken is not None:
                    self._break_off(done.broken, place)
                    return
                if done.parks:
                    return
        except Exception as error:
            self._break_off(error, place)
        finally:
            self.ledger = place.ledger

    def _break_off(self, error: Exception, place: Place) -> None:
        # Only here: at a regular end, peers may still be reading the last verdict.
        self.shut(str(error))
        self._meet(error, place)

    def _meet(self, error: Exception, place: Place) -> None:
        """Says what broke, unless a fence broke it."""
        is_torn_off = isinstance(error, GroupBroken | ExchangeMismatchError)
        if isinstance(error, FencedError) or (
            is_torn_off and self._fence.newest > place.generation
        ):
            _log.info("fenced", generation=place.generation, cause=str(error))
            return
        fault = fault_of(error, place.ledger.step)
        _log.warning("parked_by_fault", cause=fault.message, fatal=fault.is_fatal, exc_info=error)
        self._listener.fault(place.generation, fault)

    def _report(self, done: CommittedStep, step_seconds: float) -> None:
        self._listener.step_done(
            StepDone(
                record=done.record,
                learning_rate=learning_rate(self._job.optimizer, done.record.step),
                step_seconds=step_seconds,
                seconds=self._stopwatch.seconds,
                commit_time=self._clock.now(),
            )
        )

    def _enter_commit(self, record: CommitRecord) -> None:
        self.last_commit = record
        self._vitals.committed_steps = record.step + 1

    def _rest(self) -> None:
        if self._kept() is None:
            self._sums = None
        self.park_time = self._clock.now()
        is_finished = self._vitals.committed_steps >= self._job.num_steps
        self._vitals.enter(
            EngineState.ENGINE_STATE_FINISHED if is_finished else EngineState.ENGINE_STATE_PARKED
        )

    def _kept(self) -> KeptSums | None:
        """The step that could be committed from the sums at hand."""
        if self._sums is None or self.ledger.step != self._vitals.committed_steps:
            return None
        layers = tuple(self._sums.sums)
        if not self.ledger.is_whole(layers, self._job.num_microbatches):
            return None
        return KeptSums(step=self.ledger.step, generation=self.ledger.generation)
