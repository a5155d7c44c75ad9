"""The training thread: parked until it is told to take a place, then trains until it must stop.

    STARTING -> PARKED -> REBUILDING -> TRAINING -> (PARKED | FINISHED)

Whatever breaks an engine's pipeline ends here: the engine drops its groups, gradients and
activations, keeps its layers, and stands still until the coordinator has collected what every
engine knows. What breaks elsewhere voids the attempt to sum and commit, no more: the engine keeps
its place and its gradients until it is told how the step is to be finished.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from torch import Tensor

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_worker.engine.activation import (
    Activation,
    Answer,
    Builder,
    promised,
)
from planaria_worker.engine.checkpointing import Checkpointer
from planaria_worker.engine.commit import CommitRecord, KeptSums, RollForward, roll_forward
from planaria_worker.engine.communication import Communicators, GroupBroken
from planaria_worker.engine.exchange import ExchangeMismatchError
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.faults import Fault, fault_of
from planaria_worker.engine.fence import Fence, FencedError
from planaria_worker.engine.job import Job
from planaria_worker.engine.ledger import Ledger
from planaria_worker.engine.links import Links
from planaria_worker.engine.numerics.optimizer import learning_rate
from planaria_worker.engine.peer_watch import PeerWatch
from planaria_worker.engine.place import Place, Surroundings, renew_place, take_place
from planaria_worker.engine.plan_view import PlanView
from planaria_worker.engine.promise import Promise
from planaria_worker.engine.state import LayerStore
from planaria_worker.engine.step import (
    CommittedStep,
    VoidAttempt,
    apply_step,
    attempt,
    begin_step,
    compute,
)
from planaria_worker.engine.stopwatch import Stopwatch
from planaria_worker.engine.vitals import Vitals

_log = get_logger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A committed step, as the last stage of a pipeline reports it."""

    record: CommitRecord
    learning_rate: float
    step_seconds: float
    seconds: dict[str, float]
    commit_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSums:
    """The sums of a step that this engine has not seen committed, but could commit."""

    key: KeptSums
    view: PlanView
    by_layer: Mapping[int, Tensor]


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
        checkpointer: Checkpointer,
        clock: Clock,
        stopwatch: Stopwatch,
        failpoints: Failpoints,
        operation_timeout_seconds: float,
    ) -> None:
        self._job = job
        self._store = store
        self._fence = fence
        self._vitals = vitals
        self._peer_watch = peer_watch
        self._listener = listener
        self._checkpointer = checkpointer
        self._clock = clock
        self._stopwatch = stopwatch
        self._around = Surroundings(
            job=job, store=store, fence=fence, stopwatch=stopwatch, failpoints=failpoints
        )
        self._builder = Builder(
            engine_id=engine_id,
            host=host,
            around=self._around,
            clock=clock,
            operation_timeout_seconds=operation_timeout_seconds,
        )
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._links = Links()
        self._lock = threading.Lock()  # of the place and the promise, which go together
        self._place: Place | None = None
        self._promise: Promise | None = None
        self._sums: WholeSums | None = None
        self._step_started = time.perf_counter()
        self._last_ledger = Ledger(step=0, generation=0)
        self.last_commit: CommitRecord | None = None
        self.park_time = clock.now()

    @property
    def ledger(self) -> Ledger:
        """That of the step in flight, or of the last one."""
        place = self._place
        return self._last_ledger if place is None else place.ledger

    @property
    def promise(self) -> Promise | None:
        """What the engine goes on with; None when its pipeline is broken, or it has none."""
        return self._promise

    def run(self) -> None:
        """Does what it is told, for ever; call it on the main thread."""
        while True:
            self._tasks.get()()

    def submit(self, task: Callable[[], None]) -> None:
        """Runs a task on the training thread as soon as it stands still."""
        self._tasks.put(task)

    def fence(self, lost: Collection[str], reason: str) -> bool:
        """Ends sums and exchanges, after the fence has fallen; a whole pipeline goes on.

        Args:
            lost: engine ids of those that are gone.
            reason: why, for whoever waits.

        Returns:
            Whether the pipeline is whole: then the promise holds. Otherwise the engine is halted.
        """
        with self._lock:
            place = self._place if self._promise is not None else None
            members = {s.engine_id for s in place.view.pipeline.stages} if place else set()
        if place is None or not self._links.is_pipeline_whole or members & set(lost):
            self.halt(reason)
            return False
        self._links.shut_sums(reason)
        return True

    def halt(self, reason: str) -> None:
        """Ends whatever the training thread does or waits for; its gradients are dropped."""
        with self._lock:
            place, self._promise = self._place, None
            if place is not None:
                place.halt.set()
        self._links.shut(reason)
        if place is not None:
            self.submit(self._clear_away)

    def peer_lost(self, engine_id: str) -> None:
        """Ends the groups that a lost peer was in: they will never carry a message again."""
        self._links.peer_lost(engine_id)

    def commit(self, generation: int, record: CommitRecord) -> Sequence[int]:
        """Rolls forward to a witness's record; returns the layers that could not be.

        Raises:
            FencedError: the engine has been fenced since.
            ValueError: the record is more than one step ahead.
        """
        self._fence.begin_commit(generation)
        try:
            sums = self._sums
            todo = roll_forward(
                record,
                committed_steps=self._vitals.committed_steps,
                kept=None if sums is None else sums.key,
            )
            if todo is RollForward.APPLY and sums is not None:
                apply_step(self._job, self._store, sums.by_layer, record)
            elif todo is RollForward.STALE:
                self.halt("its layers are of another step")
            if todo is not RollForward.NOTHING:
                self._sums = None
                promise = self._promise
                self.submit(self._catch_up)  # before the new promise: an Activate comes behind it
                self._enter_commit(record, promise and promise.after_commit())
                if todo is RollForward.APPLY and sums is not None:
                    to_write = self._checkpointer.announce(sums.view, record.step + 1)
                    self._checkpointer.take(record.step + 1, to_write)
                if self._promise is None and self._place is not None:
                    self._drop(self._place)
                self._rest()
            version = self._vitals.committed_steps
            return [layer for layer, held in self._store.held().items() if held != version]
        finally:
            self._fence.end()

    def accept(self, activation: Activation, answer: Answer) -> Callable[[], None]:
        """Begins to take a place: at once where that needs no training thread.

        Call it on the thread that fences the engine: what was accepted before a fence is in the
        promise that the engine gives at the fence.

        Args:
            activation: the place.
            answer: told when the place is taken, or cannot be.

        Returns:
            The rest, for the training thread; what it raises is the answer as well.

        Raises:
            PlanariaError: the place cannot be taken.
        """
        view = self._builder.view(activation)
        if view.keeps_step:
            return self._accept_kept(activation, view, answer)
        place = self._place
        if place is not None and self._fence.is_fenced(place.generation):
            self.halt("the plan changed")  # a pipeline that goes on, but is not to be kept
        return lambda: self._take_and_train(activation, view, answer)

    def _accept_kept(
        self, activation: Activation, view: PlanView, answer: Answer
    ) -> Callable[[], None]:
        communicators = self._builder.communicators()
        with self._lock:
            self._require_promise(activation, view)
            self._promise = promised(activation, view)
            self._links.begin(communicators)
        self._peer_watch.watch(view.peers)

        self._builder.start(communicators, view.sum_groups, activation, answer)
        self._fence.resume()
        return lambda: self._continue(activation, view, communicators)

    def _require_promise(self, activation: Activation, view: PlanView) -> None:
        """An engine that is told to keep what it has not would compute something else."""
        place, promise = self._place, self._promise
        if place is None or promise is None or not self._links.is_pipeline_whole:
            lack = "it is in no whole pipeline"
        elif place.view.is_follower or place.view.pipeline.stages != view.pipeline.stages:
            lack = "its pipeline has other stages"
        elif promise.step != activation.committed_steps:
            lack = f"its step in flight is {promise.step}, not {activation.committed_steps}"
        elif not self._fence.is_fenced(promise.generation):
            lack = f"it trains in generation {promise.generation}, and was not fenced"
        elif not set(promise.microbatches) <= set(view.pipeline.first_microbatches):
            lack = f"it has microbatches {promise.microbatches}, and some are given to others"
        else:
            return
        raise PlanariaError(
            ErrorReason.WRONG_STATE,
            f"keeps_step: the engine cannot keep what it has computed: {lack}",
            {"field": "keeps_step"},
        )

    def _continue(self, activation: Activation, view: PlanView, awaited: Communicators) -> None:
        """Finishes the step in flight in another generation, and trains on.

        Fenced again or not, the engine makes its passes and the attempt: its pipeline does.
        """
        try:
            place = self._place
            if place is None or place.halt.is_set():
                awaited.shut("the pipeline is broken")
                return
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            self._stopwatch.lap("idle")
            self._sums = None
            renew_place(place, view=view, generation=activation.generation, awaited=awaited)
            self._train(place, view.pipeline.first_microbatches)
        finally:
            self._rest()
            self._fence.end()

    def _catch_up(self) -> None:
        """Having been told of a commit, begins the next step, as those do who passed it."""
        place = self._place
        if place is None or place.halt.is_set():
            return
        if place.ledger.step == self._vitals.committed_steps:
            return
        self._fence.resume()
        try:
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            self._begin_step(place)
            self._train(place, place.view.pipeline.microbatches)
        finally:
            self._rest()
            self._fence.end()

    def _take_and_train(self, activation: Activation, view: PlanView, answer: Answer) -> None:
        """Takes a new place and trains until the engine must stand still.

        Raises:
            FencedError: the engine has been fenced before the place was taken.
            PlanariaError: the place cannot be taken.
        """
        self._fence.begin(activation.generation)
        try:
            self._stopwatch.lap("idle")
            self._vitals.enter(EngineState.ENGINE_STATE_REBUILDING)
            start_time = self._clock.now()
            try:
                place, num_groups = self._rebuild(activation, view)
            except GroupBroken as error:
                raise self._builder.explain(error, activation.generation) from None
            self._stopwatch.lap("rebuild")
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            answer(self._builder.activated(start_time, num_groups))
            if self._vitals.committed_steps < self._job.num_steps:
                self._begin_step(place)
                first = () if view.is_follower else view.pipeline.first_microbatches
                self._train(place, first)
        finally:
            self._rest()
            self._fence.end()

    def _rebuild(self, activation: Activation, view: PlanView) -> tuple[Place, int]:
        self._builder.require_layers(view, activation.committed_steps)
        self._store.keep(view.hosted_layers)
        self.halt("the plan changed")
        self._clear_away()
        self._sums = None
        self._vitals.committed_steps = activation.committed_steps
        communicators = self._builder.communicators()
        self._links.join_pipeline(())
        self._links.begin(communicators)
        self._fence.check(activation.generation)  # a fence from here on shuts them
        self._peer_watch.watch(view.peers)
        self._builder.start(communicators, view.groups, activation)
        groups = communicators.wait()
        place = take_place(
            self._around,
            view=view,
            generation=activation.generation,
            step=activation.committed_steps,
            groups=groups,
        )
        with self._lock:
            self._fence.check(activation.generation)  # a fence from here on finds the promise
            self._links.join_pipeline(place.pipeline_groups)
            self._place = place
            self._promise = None if view.is_follower else promised(activation, view)
        return place, len(groups)

    def _begin_step(self, place: Place) -> None:
        self._step_started = time.perf_counter()
        begin_step(place, self._vitals.committed_steps)

    def _train(self, place: Place, microbatches: Sequence[int]) -> None:
        """Steps until the job is done, everybody parks, or something breaks."""
        try:
            while True:
                compute(place, place.ledger.missing(microbatches))
                done = attempt(place)
                if isinstance(done, VoidAttempt):
                    self._stand(place, done)
                    return
                if not self._go_on(place, done):
                    return
                self._begin_step(place)
                microbatches = () if place.view.is_follower else place.view.pipeline.microbatches
        except Exception as error:
            self._break_off(error, place)

    def _go_on(self, place: Place, done: CommittedStep) -> bool:
        """Enters a commit; returns whether the next step begins."""
        promise = None if done.parks or done.broken is not None else self._promise
        self._enter_commit(done.record, promise and promise.after_commit())
        version = self._vitals.committed_steps
        to_write = self._checkpointer.announce(place.view, version)
        self._fence.settle()
        self._checkpointer.take(version, to_write)
        if place.view.is_last and not place.view.is_follower:
            self._report(done)
        if done.broken is not None:
            self._break_off(done.broken, place)
        elif done.parks or self._vitals.committed_steps >= self._job.num_steps:
            self._drop(place)
        elif place.halt.is_set():
            self._break_off(FencedError(place.generation, self._fence.newest), place)
        else:
            return True
        return False

    def _stand(self, place: Place, done: VoidAttempt) -> None:
        """Waits for the next Activate with all that is computed, if the pipeline is whole."""
        if done.cause is not None:
            self._meet(done.cause, place)
        if place.pipeline is None or place.halt.is_set():
            self._drop(place)

    def _break_off(self, error: Exception, place: Place) -> None:
        # Only here: at a regular end, peers may still be reading the last verdict.
        self.halt(str(error))
        self._drop(place)
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
        _log.warning("attempt_failed", cause=fault.message, fatal=fault.is_fatal, exc_info=error)
        self._listener.fault(place.generation, fault)

    def _report(self, done: CommittedStep) -> None:
        self._listener.step_done(
            StepDone(
                record=done.record,
                learning_rate=learning_rate(self._job.optimizer, done.record.step),
                step_seconds=time.perf_counter() - self._step_started,
                seconds=self._stopwatch.seconds,
                commit_time=self._clock.now(),
            )
        )

    def _enter_commit(self, record: CommitRecord, promise: Promise | None) -> None:
        with self._lock:
            if self._promise is not None:  # nobody has halted it meanwhile
                is_last_step = record.step + 1 >= self._job.num_steps
                self._promise = None if is_last_step else promise
            self.last_commit = record
            self._stopwatch.trace.event("commit", step=record.step, generation=record.generation)
            self._vitals.committed_steps = record.step + 1

    def _clear_away(self) -> None:
        """Drops a place that was halted while the training thread stood still."""
        place = self._place
        if place is not None and place.halt.is_set():
            self._drop(place)

    def _drop(self, place: Place) -> None:
        """Gives up gradients and activations; whole sums stay, for a witness's record."""
        self._sums = self._whole_sums(place)
        self._last_ledger = place.ledger
        with self._lock:
            self._place = self._promise = None

    def _rest(self) -> None:
        if self._place is not None:
            self._sums = self._whole_sums(self._place)
        self.park_time = self._clock.now()
        self._stopwatch.trace.event("rest")
        is_finished = self._vitals.committed_steps >= self._job.num_steps
        self._vitals.enter(
            EngineState.ENGINE_STATE_FINISHED if is_finished else EngineState.ENGINE_STATE_PARKED
        )

    def _whole_sums(self, place: Place) -> WholeSums | None:
        """What the step in flight could be committed from."""
        ledger, reduced = place.ledger, place.reduced
        if ledger.step != self._vitals.committed_steps:
            return None
        if not reduced or not ledger.is_whole(reduced, self._job.num_microbatches):
            return None
        key = KeptSums(step=ledger.step, generation=ledger.generation)
        return WholeSums(key=key, view=place.view, by_layer=dict(reduced))
