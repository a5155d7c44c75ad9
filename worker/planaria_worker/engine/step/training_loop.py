"""The loop over steps: what the training thread does in a place, and between two places."""

from collections.abc import Callable, Sequence
from datetime import datetime

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.clock import Clock
from planaria_worker.engine.groups import Communicators, GroupBroken
from planaria_worker.engine.layers.checkpoint import Checkpointer
from planaria_worker.engine.plan.activation import Builder
from planaria_worker.engine.process.step_reports import StepReporter
from planaria_worker.engine.process.vitals import Vitals
from planaria_worker.engine.recovery.fence import FencedError
from planaria_worker.engine.recovery.handover import Handover
from planaria_worker.engine.recovery.staging import StagedChange
from planaria_worker.engine.recovery.training_state import TrainingState
from planaria_worker.engine.step.commit_record import CommitRecord
from planaria_worker.engine.step.training_context import TrainingContext, renew_context
from planaria_worker.engine.step.training_step import (
    CommittedStep,
    VoidAttempt,
    attempt,
    begin_step,
    compute,
)


class TrainingLoop:
    """Trains in a place until the engine must stand still; for the training thread alone."""

    def __init__(
        self,
        *,
        builder: Builder,
        training_state: TrainingState,
        handover: Handover,
        checkpointer: Checkpointer,
        vitals: Vitals,
        reporter: StepReporter,
        clock: Clock,
        halt: Callable[[str], None],
        set_aside: Callable[[], None],
    ) -> None:
        self._builder = builder
        self._resources = builder.resources
        self._training_state = training_state
        self._handover = handover
        self._checkpointer = checkpointer
        self._vitals = vitals
        self._reporter = reporter
        self._clock = clock
        self._halt = halt
        self._set_aside = set_aside

    def train_from_start(self) -> None:
        """Trains in a new place: its first step may be one that others have begun."""
        self._begin_step(self._context())
        self.train()

    def train_renewed(self, generation: int, awaited: Communicators) -> None:
        """Finishes the step in flight of a place that is kept in another generation, and trains on.

        Its plan is the next one of those that the place has ahead.

        Args:
            generation: the new one.
            awaited: its groups across the pipelines, which are being built.
        """
        context = self._context()
        renew_context(
            context,
            view=context.upcoming.popleft(),
            generation=generation,
            awaited=awaited,
            resumed_step=context.progress.step,
        )
        self.train()

    def train_on(self) -> None:
        """Trains in a place that is kept, from the next step on."""
        self._begin_step(self._context())
        self.train(self._context().view.pipeline.microbatches)

    def train(self, microbatches: Sequence[int] | None = None) -> None:
        """Steps until the job is done, everybody parks, or something breaks.

        In the place that the engine has, and in those that it takes behind commits. No caller holds
        on to the first one: its memory would be in use for as long as nothing breaks.

        Args:
            microbatches: those of the step in flight; None: those that the place begins with.
        """
        context = self._context()
        if microbatches is None:
            microbatches = (
                () if context.view.is_follower else context.view.pipeline.first_microbatches
            )
        try:
            while True:
                compute(context, context.progress.missing(microbatches))
                done = attempt(context)
                if isinstance(done, VoidAttempt):
                    self._stand(context, done)
                    return
                staged_change = self._go_on(context, done)
                if staged_change is None:
                    return
                context = staged_change
                self._begin_step(context)
                microbatches = (
                    () if context.view.is_follower else context.view.pipeline.microbatches
                )
        except Exception as error:
            self._break_off(error, context)

    def change_over(
        self, staged_change: StagedChange, record: CommitRecord
    ) -> TrainingContext | None:
        """Takes another place behind a commit; returns it, unless it cannot be taken."""
        start_time = self._clock.now()
        self._vitals.enter(EngineState.ENGINE_STATE_REBUILDING)
        try:
            self._resources.failpoints.hit("switch", record.step)
            context = self._handover.take(staged_change, record)
            if context.view.is_last:
                self._reporter.step_noted(record)
        except Exception as error:
            staged_change.finish(error)
            staged_change.drop()
            self._halt(str(error))
            self._reporter.met(error, staged_change.generation, record.step + 1)
            error.with_traceback(None)  # the answer, which is kept, would keep a place
            return None
        self._resources.stopwatch.lap("rebuild")
        self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
        self._switched(staged_change, start_time, record)
        return context

    def _context(self) -> TrainingContext:
        context = self._training_state.context
        assert context is not None  # noqa: S101 - only the training thread drops it
        return context

    def _begin_step(self, context: TrainingContext) -> None:
        self._reporter.step_begins()
        begin_step(context, self._vitals.committed_steps)

    def _go_on(self, context: TrainingContext, done: CommittedStep) -> TrainingContext | None:
        """Enters a commit; returns the place in which the next step begins, if one does."""
        record, view = done.record, context.view
        self._handover.settle_in(context)
        staged_change = self._handover.behind(record) if done.broken is None else None
        is_kept = staged_change is not None and self._handover.renew(context, staged_change, record)
        if not is_kept:
            retained_work = (
                self._training_state.retained_after(record) if done.broken is None else None
            )
            self._training_state.enter_commit(record, retained_work)
        to_write = self._checkpointer.announce(view, record.step + 1)
        if context.view.is_last:
            self._reporter.step_noted(record)  # for a fence within the copies
        self._resources.fence.settle()
        with self._resources.fence.computing():
            self._checkpointer.take(record.step + 1, to_write, self.note_copy)
        if context.view.is_last and not context.view.is_follower:
            self._reporter.step_done(record)
        if done.broken is not None:
            self._break_off(done.broken, context)
        elif staged_change is not None and is_kept:
            self._resources.failpoints.hit("switch", record.step)
            self._switched(staged_change, self._clock.now(), record)
            return context
        elif (
            staged_change is not None
            and not staged_change.view.keeps_step
            and not context.halt.is_set()
        ):
            self._training_state.drop()
            return self.change_over(staged_change, record)
        elif record.ends_generation or self._training_state.is_finished:
            self._training_state.drop()
        elif context.halt.is_set():
            fenced = FencedError(context.generation, self._resources.fence.newest)
            self._break_off(fenced, context)
        else:
            return context
        return None

    def note_copy(self) -> None:
        """Every tensor that is copied for a checkpoint is progress."""
        self._resources.stopwatch.lap("between")

    def _switched(
        self, staged_change: StagedChange, start_time: datetime, record: CommitRecord
    ) -> None:
        num_groups = len(staged_change.communicators.groups)
        staged_change.finish(self._builder.activated(start_time, num_groups, record.step + 1))

    def _stand(self, context: TrainingContext, done: VoidAttempt) -> None:
        """Waits for the next Activate with all that is computed, if the pipeline is whole."""
        if done.cause is not None:
            self._reporter.met(done.cause, context.generation, context.progress.step)
        if context.pipeline is None or context.halt.is_set():
            self._training_state.drop()

    def _break_off(self, error: Exception, context: TrainingContext) -> None:
        # Only here: at a regular end, peers may still be reading the last verdict.
        if not context.halt.is_set():  # else the groups may be those of another generation by now
            if isinstance(error, GroupBroken):
                self._set_aside()  # somebody has died, or a fence has come: it collects everybody
            self._halt(str(error))
        self._training_state.drop()
        self._reporter.met(error, context.generation, context.progress.step)
