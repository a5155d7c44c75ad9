"""The handover: a change of plan that is staged while training continues, and made at a commit.

The training thread switches to the staged plan between two steps. An unchanged pipeline keeps its
context, and goes on in the next generation in the same moment in which it notes the commit.
"""

from collections.abc import Callable, Mapping

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import FencedError, StaleGenerationError
from planaria_worker.engine.groups import Communicators
from planaria_worker.engine.groups.current_groups import CurrentGroups
from planaria_worker.engine.memory import give_back_freed
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.recovery.current_training import CurrentTraining
from planaria_worker.engine.recovery.failure_detector import FailureDetector
from planaria_worker.engine.recovery.plan_request import Answer, Builder, PlanRequest
from planaria_worker.engine.recovery.staging import StagedAnswer, StagedChange, require_stageable
from planaria_worker.engine.step.training_context import TrainingContext, renew_context

OnJoin = Callable[[StagedChange, CommitRecord], None]
"""Called when other engines have made the commit at which this engine is to switch."""


class Handover:
    """The staged change of an engine, if it has one; methods may be called from any thread."""

    def __init__(
        self,
        *,
        builder: Builder,
        job_secret: str,
        current_training: CurrentTraining,
        current_groups: CurrentGroups,
        failure_detector: FailureDetector,
        on_join: OnJoin,
    ) -> None:
        self._builder = builder
        self._job_secret = job_secret
        self._fence = builder.resources.fence
        self._current_training = current_training
        self._current_groups = current_groups
        self._failure_detector = failure_detector
        self._on_join = on_join
        self._next: StagedChange | None = None
        self._peers: Mapping[str, str] = {}
        self._has_switched = False

    def stage(self, request: PlanRequest, answer: StagedAnswer) -> None:
        """Begin to stage a change, while the engine does whatever it does.

        Args:
            request: the change.
            answer: called when it is ready, or cannot be.

        Raises:
            PlanariaError: it cannot be staged.
        """
        view = self._builder.view(request)
        with self._current_training.lock:
            state = self._current_training
            context = state.context if state.has_live_context else None
            require_stageable(request, view, context)
            self._next = staged_change = StagedChange(
                builder=self._builder,
                job_secret=self._job_secret,
                request=request,
                view=view,
                is_voting=context is not None,
                on_commit=self._followed,
            )
            self._current_groups.stage(staged_change.communicators)
            self._watch(staged_change.communicators)
        staged_change.start(answer)

    def unstage(self, generation: int) -> None:
        """Drop a change that was staged in an older generation."""
        with self._current_training.lock:
            staged_change = self._next
            if staged_change is None or staged_change.generation >= generation:
                return
            self._next = None
            self._watch()
        staged_change.drop()

    def give_way(self) -> bool:
        """Drop a staged change whose memory training needs; return whether there was one."""
        with self._current_training.lock:
            staged_change = self._next
            if staged_change is None or staged_change.is_taken:
                return False
            self._next = None
            self._watch()
        staged_change.drop()
        give_back_freed(self._builder.resources.job.device)
        return True

    def mark_for_switch(self, generation: int, answer: Answer) -> None:
        """Hold the mark of the staged change: the switch follows at the commit where all hold it.

        Args:
            generation: of the change.
            answer: called when the engine has switched, or cannot.

        Raises:
            PlanariaError: no such change is staged, or it is not ready.
        """
        staged_change = self._ready(generation)
        if staged_change is None:
            raise PlanariaError(
                ErrorReason.WRONG_STATE,
                f"no change of generation {generation} is staged",
                {"generation": str(generation)},
            )
        if not staged_change.answer_with(answer) and not staged_change.is_taken:
            self._fence.fence_at_commit(generation)

    def watch(self, view: PlanView, groups_being_built: Communicators | None = None) -> None:
        """Watch the peers of a new plan, and those of the staged one.

        Args:
            view: the plan.
            groups_being_built: its groups; those of a plan that was staged are built.
        """
        with self._current_training.lock:
            self._peers = view.peers
            self._watch(groups_being_built)

    def reconnect(self) -> None:
        """Find out which peers take no new connections: one was needed, and failed."""
        self._failure_detector.reconnect_unless(lambda: False)

    def change_at(self, record: CommitRecord) -> StagedChange | None:
        """Return the change to switch to at a commit; None: none, or the job is finished."""
        staged_change = self._ready(record.next_generation)
        is_over = self._current_training.ends_after(record.step + 1)
        return None if staged_change is None or staged_change.is_taken or is_over else staged_change

    def renew(
        self, context: TrainingContext, staged_change: StagedChange, record: CommitRecord
    ) -> bool:
        """Note a commit, and switch to the staged plan in the same context: the pipeline stays.

        There is no moment without retained work.

        Returns:
            Whether it does. Otherwise nothing was done: the pipeline changes, or the engine was
            fenced or halted meanwhile.
        """

        def change() -> None:
            staged_change.mark_taken()
            renew_context(
                context,
                view=staged_change.view,
                generation=staged_change.generation,
                groups_being_built=staged_change.communicators,
            )
            self._current_groups.hand_over(staged_change.communicators)

        current_training = self._current_training
        with current_training.lock:
            if not staged_change.view.keeps_step or current_training.retained_work is None:
                return False
            try:
                self._fence.install(staged_change.generation, change)
            except StaleGenerationError:
                return False
            current_training.finish_commit(record, staged_change.retained_work(record.step + 1))
            self.watch(staged_change.view)
        context.trace()
        return True

    def replace_context(self, staged_change: StagedChange, record: CommitRecord) -> TrainingContext:
        """Switch to the context of the staged plan, when its layers have the commit.

        Raises:
            FencedError: the engine was fenced meanwhile.
            PlanariaError: the layers do not come.
        """
        version = record.step + 1
        staged_change.wait_for_layers(version)

        def change() -> TrainingContext:
            self._current_training.note_commit(record)
            return staged_change.take(version)

        with self._current_training.lock:
            try:
                context = self._fence.install(staged_change.generation, change)
            except StaleGenerationError as error:
                raise FencedError(staged_change.generation, error.newest) from None
            self._current_groups.hand_over(staged_change.communicators, context.pipeline_groups)
            self._current_training.begin(context, staged_change.retained_work(version), self._fence)
            self.watch(staged_change.view)
        self._has_switched = True
        return context

    def release_replaced(self, context: TrainingContext) -> None:
        """Release the old plan's groups and layers; after the first commit in the new plan."""
        self._current_groups.shut_retired("the plan changed")
        if self._has_switched:
            self._has_switched = False
            self._builder.resources.store.keep(context.view.hosted_layers)

    def _ready(self, generation: int) -> StagedChange | None:
        staged_change = self._next
        if (
            staged_change is None
            or staged_change.generation != generation
            or not staged_change.is_ready
        ):
            return None
        return staged_change

    def _followed(self, staged_change: StagedChange, record: CommitRecord) -> None:
        """Note a commit that all followed layers of a staged change have."""
        is_next = record.next_generation == staged_change.generation
        if is_next and not staged_change.is_voting and self.change_at(record) is staged_change:
            self._on_join(staged_change, record)

    def _watch(self, groups_being_built: Communicators | None = None) -> None:
        staged = {} if self._next is None else self._next.view.peers
        self._failure_detector.watch({**staged, **self._peers})
        if groups_being_built is not None:
            self._failure_detector.reconnect_unless(lambda: groups_being_built.is_built)
