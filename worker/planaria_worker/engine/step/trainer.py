"""The training thread: parked until it is told to take a place, then trains until it must stop.

    STARTING -> PARKED -> REBUILDING -> TRAINING -> (PARKED | FINISHED)

Whatever breaks an engine's pipeline ends here: the engine drops its groups, gradients and
activations, keeps its layers, and computes nothing until the coordinator has collected what every
engine knows. What breaks elsewhere voids the attempt to sum and commit, no more: the engine keeps
its place and its gradients until it is told how the step is to be finished.
"""

import queue
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_worker.engine.groups import Communicators, GroupBroken, SumGroup
from planaria_worker.engine.groups.current_groups import CurrentGroups
from planaria_worker.engine.groups.failure_detector import FailureDetector
from planaria_worker.engine.layers.checkpoint import Checkpointer
from planaria_worker.engine.plan.activation import Activation, Answer, Builder, retained_by
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.process.step_reports import Listener, StepReporter
from planaria_worker.engine.process.vitals import Vitals
from planaria_worker.engine.recovery.fence import FencedError
from planaria_worker.engine.recovery.handover import Handover
from planaria_worker.engine.recovery.retained_work import RetainedWork
from planaria_worker.engine.recovery.staging import StagedChange
from planaria_worker.engine.recovery.training_state import TrainingState
from planaria_worker.engine.step.commit_record import CommitRecord, RollForward, roll_forward
from planaria_worker.engine.step.step_progress import StepProgress
from planaria_worker.engine.step.training_context import build_context
from planaria_worker.engine.step.training_loop import TrainingLoop
from planaria_worker.engine.step.training_step import apply_step


class Trainer:
    """Owns the training; its public methods but `run` may be called from any thread."""

    def __init__(
        self,
        *,
        builder: Builder,
        job_secret: str,
        vitals: Vitals,
        failure_detector: FailureDetector,
        listener: Listener,
        checkpointer: Checkpointer,
    ) -> None:
        resources, clock = builder.resources, builder.clock
        self._builder = builder
        self._resources = resources
        self._fence = resources.fence
        self._stopwatch = resources.stopwatch
        self._clock = clock
        self._vitals = vitals
        self._checkpointer = checkpointer
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._links = CurrentGroups()
        self._reporter = StepReporter(resources, listener, clock)
        self._training_state = TrainingState(
            vitals=vitals, trace=resources.stopwatch.trace, num_commits=resources.job.num_commits
        )
        self.handover = Handover(
            builder=builder,
            job_secret=job_secret,
            training_state=self._training_state,
            links=self._links,
            failure_detector=failure_detector,
            on_join=lambda *what: self.submit(lambda: self._join(*what)),
        )
        self._loop = TrainingLoop(
            builder=builder,
            training_state=self._training_state,
            handover=self.handover,
            checkpointer=checkpointer,
            vitals=vitals,
            reporter=self._reporter,
            clock=clock,
            halt=self.halt,
            set_aside=lambda: self._links.retain_idle(()),
        )
        self.park_time = clock.now()

    @property
    def progress(self) -> StepProgress:
        """That of the step in flight, or of the last one."""
        return self._training_state.progress

    @property
    def retained_work(self) -> RetainedWork | None:
        """What the engine goes on with; None when its pipeline is broken, or it has none."""
        return self._training_state.retained_work

    @property
    def last_commit(self) -> CommitRecord | None:
        """The newest commit that the engine can bear witness to."""
        return self._training_state.last_commit

    @property
    def idle_groups(self) -> Sequence[SumGroup]:
        """Groups of sums that were set aside."""
        return self._links.idle_groups

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
        training_state = self._training_state
        self._links.retain_idle(lost)
        with training_state.lock:
            context = training_state.context if training_state.retained_work is not None else None
            members = {s.engine_id for s in context.view.pipeline.stages} if context else set()
        if context is None or not self._links.is_pipeline_healthy or members & set(lost):
            self.halt(reason)
            return False
        self._links.shut_sums(reason)
        return True

    def halt(self, reason: str) -> None:
        """Ends whatever the training thread does or waits for; its gradients are dropped."""
        context = self._training_state.halt()
        self._links.shut(reason)
        if context is not None:
            self.submit(self._clear_away)

    def peer_lost(self, engine_id: str) -> None:
        """Ends the groups that a lost peer was in: they will never carry a message again."""
        self._links.peer_lost(engine_id)

    def commit(
        self, generation: int, record: CommitRecord, answer: Callable[[Sequence[int]], None]
    ) -> None:
        """Rolls forward to a witness's record.

        Args:
            generation: of the directive.
            record: the witness's.
            answer: told which layers could not be brought there, before the copies for a checkpoint
                are taken: they may last longer than an answer.

        Raises:
            FencedError: the engine has been fenced since.
            ValueError: the record is more than one step ahead.
        """
        self._fence.begin_commit(generation)
        try:
            to_write = self._roll_forward(record)
            version, held = self._vitals.committed_steps, self._resources.store.held()
            self._fence.settle()
            with self._fence.computing():
                answer([layer for layer in held if held[layer] != version])
                self._checkpointer.take(version, to_write, self._loop.note_copy)
        finally:
            self._fence.end()

    def _roll_forward(self, record: CommitRecord) -> Sequence[int]:
        """Does what a record asks of this engine; returns the layers to copy for a checkpoint.

        Raises:
            ValueError: the record is more than one step ahead.
        """
        training_state, sums = self._training_state, self._training_state.sums
        todo = roll_forward(
            record,
            committed_steps=self._vitals.committed_steps,
            kept=None if sums is None else sums.key,
        )
        if todo is RollForward.NOTHING:
            return ()
        to_write: Sequence[int] = ()
        if todo is RollForward.STALE:
            self.halt("its layers are of another step")
        elif sums is not None:
            resources = self._resources
            apply_step(resources.job, resources.store, resources.feed, sums.by_layer, record)
            to_write = self._checkpointer.announce(sums.view, record.step + 1)
        training_state.sums = None
        self.submit(self._catch_up)  # before the new promise: an Activate comes behind it
        training_state.enter_commit(record, training_state.retained_after(record))
        self._reporter.step_done(record)  # those who passed it may all have died untold
        if training_state.retained_work is None:
            training_state.drop()
        self._rest()
        return to_write

    def tell_noted(self) -> None:
        """Reports the newest step, if others were to and may have died before they did."""
        self._reporter.tell_noted()

    def accept(self, activation: Activation, answer: Answer) -> Callable[[], None]:
        """Begins to take a place, and to build its groups: as soon as the engine was halted.

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
        self._builder.require_layers(view, activation.committed_steps)
        self._training_state.require_fenced(self._fence)
        self.halt("the plan changed")
        communicators = self._builder.communicators(activation)
        begun: Future[datetime] = Future()

        def begin() -> None:
            try:
                begun.set_result(self._build(communicators, activation, view))
            except Exception as error:
                begun.set_exception(error.with_traceback(None))  # which would keep the groups

        self._fence.when_halted(begin)
        return lambda: self._take_and_train(activation, view, communicators, begun, answer)

    def _build(
        self, communicators: Communicators, activation: Activation, view: PlanView
    ) -> datetime:
        """Begins to build the groups of a new place; returns when.

        Raises:
            StaleGenerationError: the engine has been fenced meanwhile.
        """
        start_time = self._clock.now()

        def change() -> None:
            self._links.set_pipeline(())
            self._begin(communicators, activation, view)

        with self._training_state.lock:
            self._fence.install(activation.generation, change)  # a fence from here on shuts them
            self.handover.watch(view)
        self._builder.start(communicators, view.groups, activation)
        return start_time

    def _accept_kept(
        self, activation: Activation, view: PlanView, answer: Answer
    ) -> Callable[[], None]:
        communicators = self._builder.communicators(activation)
        with self._training_state.lock:
            context = self._training_state.require_retained_work(
                activation, view, self._links, self._fence
            )
            self._begin(communicators, activation, view)
            self._training_state.retained_work = retained_by(activation, view)
        self.handover.watch(view)

        self._builder.start(communicators, view.sum_groups, activation, answer)
        self._fence.resume()
        context.upcoming.append(view)
        return lambda: self._continue(activation, communicators)

    def _continue(self, activation: Activation, awaited: Communicators) -> None:
        """Finishes the step in flight in another generation, and trains on.

        Fenced again or not, the engine makes its passes and the attempt: its pipeline does.
        """
        with self._training():
            if not self._training_state.is_in_place:
                broken = GroupBroken("the pipeline broke before its step went on")
                awaited.shut(str(broken))
                self._reporter.met(broken, activation.generation, activation.committed_steps)
                return
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            self._stopwatch.lap("idle")
            self._training_state.sums = None
            self._loop.train_renewed(activation.generation, awaited)

    def _catch_up(self) -> None:
        """Having been told of a commit, begins the next step, as those do who passed it."""
        training_state = self._training_state
        if (
            not training_state.is_in_place
            or training_state.progress.step == training_state.committed_steps
        ):
            return
        self._fence.resume()
        with self._training():
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            self._loop.train_on()

    def _take_and_train(
        self,
        activation: Activation,
        view: PlanView,
        communicators: Communicators,
        begun: Future[datetime],
        answer: Answer,
    ) -> None:
        """Takes a new place, whose groups are being built, and trains until it must stand still.

        Raises:
            FencedError: the engine has been fenced before the place was taken.
            PlanariaError: the place cannot be taken.
        """
        try:
            self._fence.begin(activation.generation)
        except FencedError as error:
            communicators.shut(str(error))
            raise
        with self._training():
            self._stopwatch.lap("idle")
            self._vitals.enter(EngineState.ENGINE_STATE_REBUILDING)
            try:
                start_time = begun.result(0)
            finally:
                del begun  # a failure would keep itself
            try:
                num_groups = self._rebuild(activation, view, communicators)
            except GroupBroken as error:
                raise self._builder.explain(error, activation.generation) from None
            self._stopwatch.lap("rebuild")
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            answer(self._builder.activated(start_time, num_groups, activation.committed_steps))
            if not self._training_state.is_finished:
                self._loop.train_from_start()

    def _rebuild(self, activation: Activation, view: PlanView, communicators: Communicators) -> int:
        """Takes the place as soon as its groups stand; returns how many it has."""
        self._resources.store.keep(view.hosted_layers)
        self._clear_away()
        self._training_state.sums = None
        self._vitals.committed_steps = activation.committed_steps
        groups = communicators.wait()
        step = activation.committed_steps
        context = build_context(
            self._resources,
            view=view,
            generation=activation.generation,
            step=step,
            groups=groups,
            states=self._resources.store.states,
            resumed_step=step if view.is_resuming else None,
        )
        with self._training_state.lock:
            self._links.set_pipeline(context.pipeline_groups)
            retained_work = None if view.is_follower else retained_by(activation, view)
            self._training_state.take(context, retained_work, self._fence)
        return len(groups)

    def _begin(self, communicators: Communicators, activation: Activation, view: PlanView) -> None:
        """Begins a generation, with the groups that nothing has happened to."""
        kept = self._links.begin(communicators, sums=view.sum_groups, kept=activation.kept_groups)
        self._stopwatch.trace.event("groups_kept", names=list(kept))

    def _join(self, staged_change: StagedChange, record: CommitRecord) -> None:
        """Takes a place behind a commit that others made, and trains."""
        if self.handover.behind(record) is not staged_change:
            return
        try:
            self._fence.begin(staged_change.generation)
        except FencedError:
            return
        with self._training():
            self._stopwatch.lap("idle")
            self._clear_away()
            self._training_state.sums = None
            if self._loop.change_over(staged_change, record) is not None:
                self._loop.train_from_start()

    def _clear_away(self) -> None:
        """Drops a place that was halted while the training thread stood still."""
        context = self._training_state.context
        if context is not None and context.halt.is_set():
            self._training_state.drop()

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Whatever ends it, the engine rests then."""
        try:
            yield
        finally:
            self._rest()
            self._fence.end()

    def _rest(self) -> None:
        self._training_state.keep_sums()
        self.park_time = self._clock.now()
        self._stopwatch.trace.event("rest")
        is_finished = self._training_state.is_finished
        self._vitals.enter(
            EngineState.ENGINE_STATE_FINISHED if is_finished else EngineState.ENGINE_STATE_PARKED
        )
