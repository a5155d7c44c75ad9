"""What an engine trains in, retains and has committed: what its reports say at any moment."""

import threading

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.groups.current_groups import CurrentGroups
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.recovery.plan_request import PlanRequest
from planaria_worker.engine.recovery.retained_work import RetainedWork
from planaria_worker.engine.recovery.roll_forward import CommittableSums, committable_sums
from planaria_worker.engine.step.training_context import TrainingContext
from planaria_worker.engine.step_progress import StepProgress
from planaria_worker.engine.telemetry import Trace, Vitals


class CurrentTraining:
    """The training context, the retained work and the newest commit, which change together.

    Attributes:
        lock: held by all methods, and while these change together with something else.
        context: what the engine trains in; None while it has no plan.
        retained_work: what the engine keeps of the step in flight; None when its pipeline is
            broken, or it has none.
        last_commit: the newest that the engine has made, applied from a record, or switched at.
        vitals: the state of the engine, and how many steps it has committed.
        committable_sums: what a witness's record can be committed from while it is parked.
    """

    def __init__(self, *, vitals: Vitals, trace: Trace, num_commits: int) -> None:
        self.lock = threading.RLock()
        self.context: TrainingContext | None = None
        self.retained_work: RetainedWork | None = None
        self.last_commit: CommitRecord | None = None
        self.committable_sums: CommittableSums | None = None
        self._last_progress = StepProgress(step=0, generation=0)
        self.vitals = vitals
        self._trace = trace
        self._num_commits = num_commits

    @property
    def committed_steps(self) -> int:
        return self.vitals.committed_steps

    @property
    def num_skipped(self) -> int:
        """Steps that were skipped in a row, up to the newest commit, as far as is known here."""
        record = self.last_commit
        is_newest = record is not None and record.step + 1 == self.committed_steps
        return record.num_skipped if record is not None and is_newest else 0

    @property
    def progress(self) -> StepProgress:
        """Return the progress of the step in flight, or of the last one."""
        context = self.context
        return self._last_progress if context is None else context.progress

    @property
    def has_live_context(self) -> bool:
        """Whether the engine has a training context that was not halted."""
        context = self.context
        return context is not None and not context.halt.is_set()

    @property
    def is_finished(self) -> bool:
        """Whether the job's last step is committed, including a closing one."""
        return self.ends_after(self.committed_steps)

    def ends_after(self, committed_steps: int) -> bool:
        """Whether the job ends after so many steps."""
        return committed_steps >= self._num_commits

    def begin(
        self, context: TrainingContext, retained_work: RetainedWork | None, fence: Fence
    ) -> None:
        """Train in a new context from now on.

        Raises:
            FencedError: the engine is fenced already; a later fence finds the retained work.
        """
        with self.lock:
            fence.check(context.generation)
            self.context, self.retained_work = context, retained_work
        context.trace()

    def finish_commit(self, record: CommitRecord, retained_work: RetainedWork | None) -> None:
        """Note a commit, and what is retained after it unless the engine was halted."""
        with self.lock:
            is_halted = self.retained_work is None
            self.note_commit(record)
            self._trace.event(
                "commit",
                step=record.step,
                generation=record.generation,
                ends_generation=record.ends_generation,
            )
            self.retained_work = None if is_halted or self.is_finished else retained_work

    def note_commit(self, record: CommitRecord) -> None:
        """Note the newest commit, whichever engine made it."""
        with self.lock:
            self.last_commit = record
            self.vitals.committed_steps = record.step + 1

    def halt(self) -> TrainingContext | None:
        """Drop the retained work; return the context, which ends at its next action."""
        with self.lock:
            self.retained_work = None
            if self.context is not None:
                self.context.halt.set()
            return self.context

    def retained_after_commit(self, record: CommitRecord) -> RetainedWork | None:
        """Return what is retained after a commit: nothing, if it ends the generation."""
        retained_work = self.retained_work
        return (
            None
            if retained_work is None or record.ends_generation
            else retained_work.after_commit()
        )

    def keep_sums(self) -> None:
        """Keep the sums of the step in flight, if it could be committed from them."""
        with self.lock:
            if self.context is not None:
                self.committable_sums = committable_sums(self.context, self.committed_steps)

    def drop(self) -> None:
        """Drop the context, its gradients and activations; committable sums stay."""
        with self.lock:
            if self.context is not None:
                self.keep_sums()
                self._last_progress = self.context.progress
            self.context = self.retained_work = None

    def require_fenced(self, fence: Fence) -> None:
        """Make sure that the engine can no longer commit in the context that it has.

        Raises:
            PlanariaError: it trains and was not fenced.
        """
        context = self.context
        if (
            context is not None
            and self.has_live_context
            and not fence.is_fenced(context.generation)
        ):
            raise PlanariaError(
                ErrorReason.WRONG_STATE,
                f"the engine trains in generation {context.generation}, and was not fenced",
                {"generation": str(context.generation)},
            )

    def require_retained_work(
        self, request: PlanRequest, view: PlanView, current_groups: CurrentGroups, fence: Fence
    ) -> TrainingContext:
        """Make sure that the engine has what an Activate wants it to keep.

        Returns:
            The context that it keeps.

        Raises:
            PlanariaError: says what the engine lacks.
        """
        context, retained_work = self.context, self.retained_work
        if context is None or retained_work is None or not current_groups.is_pipeline_healthy:
            lack = "it is in no healthy pipeline"
        elif context.view.is_follower or context.view.pipeline.stages != view.pipeline.stages:
            lack = "its pipeline has other stages"
        elif retained_work.step != request.committed_steps:
            lack = f"its step in flight is {retained_work.step}, not {request.committed_steps}"
        elif not fence.is_fenced(retained_work.generation):
            lack = f"it trains in generation {retained_work.generation}, and was not fenced"
        elif not set(retained_work.step_microbatches) <= set(view.step_microbatches):
            have = retained_work.step_microbatches
            lack = f"it has microbatches {have}, and some are given to others"
        else:
            return context
        raise PlanariaError(
            ErrorReason.WRONG_STATE,
            f"keeps_step: the engine cannot keep what it has computed: {lack}",
            {"field": "keeps_step"},
        )
