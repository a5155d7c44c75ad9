"""The loop over steps: compute, attempt, note the commit, go on, in this plan or the next one."""

from collections.abc import Callable, Sequence
from datetime import datetime

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import Communicators, GroupBroken
from planaria_worker.engine.layers.checkpoint import Checkpointer
from planaria_worker.engine.memory import is_out_of_memory
from planaria_worker.engine.recovery.current_training import CurrentTraining
from planaria_worker.engine.recovery.handover import Handover
from planaria_worker.engine.recovery.plan_request import Builder
from planaria_worker.engine.recovery.staging import StagedChange
from planaria_worker.engine.step.training_context import TrainingContext, renew_context
from planaria_worker.engine.step.training_step import (
    AbortedAttempt,
    CommittedStep,
    attempt,
    begin_step,
    compute,
)
from planaria_worker.engine.training.step_reports import StepReporter


def _room_was_missing(error: Exception) -> PlanariaError:
    return PlanariaError(
        ErrorReason.UNAVAILABLE,
        f"out of memory while the next plan was staged: {error}".partition("\n")[0],
    )


class TrainingLoop:
    """Trains until the engine must stop; for the training thread alone."""

    def __init__(
        self,
        *,
        builder: Builder,
        current_training: CurrentTraining,
        handover: Handover,
        checkpointer: Checkpointer,
        reporter: StepReporter,
        halt: Callable[[str], None],
        retain_idle: Callable[[], None],
    ) -> None:
        self._builder = builder
        self._resources = builder.resources
        self._current_training = current_training
        self._handover = handover
        self._checkpointer = checkpointer
        self._vitals = current_training.vitals
        self._reporter = reporter
        self._clock = builder.clock
        self._halt = halt
        self._retain_idle = retain_idle

    def train_from_start(self) -> None:
        """Train in a new context; an earlier generation may have begun its first step."""
        self._begin_step(self._context())
        self.train()

    def train_renewed(self, generation: int, groups_being_built: Communicators) -> None:
        """Finish the step in flight in another generation, then train on.

        The context is kept; its plan is the first of those in `next_plans`.

        Args:
            generation: the new one.
            groups_being_built: its groups across the pipelines.
        """
        context = self._context()
        renew_context(
            context,
            view=context.next_plans.popleft(),
            generation=generation,
            groups_being_built=groups_being_built,
            resumed_step=context.progress.step,
        )
        self.train()

    def train_on(self) -> None:
        """Train in a context that is kept, from the next step on."""
        self._begin_step(self._context())
        self.train(self._context().view.regular_microbatches)

    def train(self, microbatches: Sequence[int] | None = None) -> None:
        """Run steps until the job is done, all engines park, or something breaks.

        Starts in the context that the engine has, and goes on in those that it switches to at
        commits. No caller may keep the first one: its memory would never be freed.

        Args:
            microbatches: those of the step in flight; None: those that the plan begins with.
        """
        context = self._context()
        if microbatches is None:
            microbatches = context.view.step_microbatches
        try:
            while True:
                compute(context, context.progress.missing(microbatches))
                done = attempt(context)
                if isinstance(done, AbortedAttempt):
                    self._park(context, done)
                    return
                following = self._go_on(context, done)
                if following is None:
                    return
                context = following
                self._begin_step(context)
                microbatches = context.view.regular_microbatches
        except Exception as error:
            self._break_off(error, context)

    def switch(self, staged_change: StagedChange, record: CommitRecord) -> TrainingContext | None:
        """Switch to the context of a staged plan at a commit; return it, or None if that failed."""
        start_time = self._clock.now()
        self._vitals.enter(EngineState.ENGINE_STATE_REBUILDING)
        try:
            self._resources.failpoints.hit("switch", record.step)
            context = self._handover.replace_context(staged_change, record)
            if context.view.is_deciding:
                self._reporter.hold_step(record)
        except Exception as error:
            reason = _room_was_missing(error) if is_out_of_memory(error) else error
            staged_change.finish(reason)
            staged_change.drop()
            self._halt(str(error))
            self._reporter.report_fault(reason, staged_change.generation, record.step + 1)
            error.with_traceback(None)  # the answer, which is kept, would keep a context
            return None
        self._resources.stopwatch.lap("rebuild")
        self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
        self._switched(staged_change, start_time, record)
        return context

    def _context(self) -> TrainingContext:
        context = self._current_training.context
        assert context is not None  # noqa: S101 - only the training thread drops it
        return context

    def _begin_step(self, context: TrainingContext) -> None:
        self._reporter.step_begins()
        current_training = self._current_training
        begin_step(context, current_training.committed_steps, current_training.num_skipped)

    def _go_on(self, context: TrainingContext, done: CommittedStep) -> TrainingContext | None:
        """Note a commit; return the context of the next step, or None if there is none."""
        record, view = done.record, context.view
        self._handover.release_replaced(context)
        staged_change = self._handover.change_at(record) if done.broken is None else None
        is_kept = staged_change is not None and self._handover.renew(context, staged_change, record)
        if not is_kept:
            retained_work = (
                self._current_training.retained_after_commit(record)
                if done.broken is None
                else None
            )
            self._current_training.finish_commit(record, retained_work)
        to_write = self._checkpointer.announce(view, record.step + 1)
        if context.view.is_deciding:
            self._reporter.hold_step(record)  # a fence may come during the copies
        self._resources.fence.settle()
        with self._resources.fence.computing():
            self._checkpointer.take(record.step + 1, to_write, self.note_copy)
        if context.view.is_deciding and not context.view.is_follower:
            self._reporter.step_done(record)
        if done.broken is not None:
            self._break_off(done.broken, context)
            return None
        if staged_change is not None and is_kept:
            self._resources.failpoints.hit("switch", record.step)
            self._switched(staged_change, self._clock.now(), record)
            return context
        if staged_change is not None and not (
            staged_change.view.keeps_step or context.halt.is_set()
        ):
            self._current_training.drop()
            return self.switch(staged_change, record)
        if record.ends_generation or self._current_training.is_finished:
            self._current_training.drop()
            return None
        if context.halt.is_set():
            fenced = FencedError(context.generation, self._resources.fence.newest)
            self._break_off(fenced, context)
            return None
        return context

    def note_copy(self) -> None:
        """Count every tensor that is copied for a checkpoint as progress."""
        self._resources.stopwatch.lap("between")

    def _switched(
        self, staged_change: StagedChange, start_time: datetime, record: CommitRecord
    ) -> None:
        staged_change.finish(self._builder.activated(start_time, record.step + 1))

    def _park(self, context: TrainingContext, done: AbortedAttempt) -> None:
        """Report why the attempt failed; keep a healthy pipeline's context for the next plan."""
        if done.cause is not None:
            self._reporter.report_fault(done.cause, context.generation, context.progress.step)
        if context.pipeline is None or context.halt.is_set():
            self._current_training.drop()

    def _break_off(self, error: Exception, context: TrainingContext) -> None:
        """Halt, drop the context and report the error.

        A regular end does not halt: peers may still be reading the last decision. An engine whose
        memory went to the next plan gives that up and is sound: only this attempt is lost.
        """
        if is_out_of_memory(error) and self._handover.give_way():
            error = _room_was_missing(error)
        if not context.halt.is_set():  # else the groups may already be those of a new generation
            if isinstance(error, GroupBroken):
                self._retain_idle()  # an engine was lost, or a fence came: a new plan will follow
            self._halt(str(error))
        self._current_training.drop()
        self._reporter.report_fault(error, context.generation, context.progress.step)
