"""Changing the plan behind a commit: the place of the next generation, staged and then taken.

Staging goes on beside everything else. Taking the place is done by the training thread, between two
steps; for an unchanged pipeline in the same moment in which it enters the commit.
"""

from collections.abc import Callable, Mapping

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.groups.current_groups import CurrentGroups
from planaria_worker.engine.groups.failure_detector import FailureDetector
from planaria_worker.engine.plan.activation import Activation, Answer, Builder
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.recovery.fence import FencedError, StaleGenerationError
from planaria_worker.engine.recovery.staging import StagedAnswer, StagedChange, require_stageable
from planaria_worker.engine.recovery.training_state import TrainingState
from planaria_worker.engine.step.commit_record import CommitRecord
from planaria_worker.engine.step.training_context import TrainingContext, renew_context

OnJoin = Callable[[StagedChange, CommitRecord], None]
"""Called when others have made the commit behind which a place is to be taken."""


class Handover:
    """The next place of an engine, if there is one; methods may be called from any thread."""

    def __init__(
        self,
        *,
        builder: Builder,
        job_secret: str,
        training_state: TrainingState,
        links: CurrentGroups,
        failure_detector: FailureDetector,
        on_join: OnJoin,
    ) -> None:
        self._builder = builder
        self._job_secret = job_secret
        self._fence = builder.resources.fence
        self._training_state = training_state
        self._links = links
        self._failure_detector = failure_detector
        self._on_join = on_join
        self._next: StagedChange | None = None
        self._peers: Mapping[str, str] = {}
        self._has_moved = False

    def stage(self, activation: Activation, answer: StagedAnswer) -> None:
        """Begins to make a place ready, beside whatever the engine does.

        Args:
            activation: the place.
            answer: told when it is ready, or cannot be.

        Raises:
            PlanariaError: it cannot be staged.
        """
        view = self._builder.view(activation)
        with self._training_state.lock:
            context = self._training_state.context if self._training_state.is_in_place else None
            require_stageable(activation, view, context)
            self._next = staged_change = StagedChange(
                builder=self._builder,
                job_secret=self._job_secret,
                activation=activation,
                view=view,
                is_in_exchange=context is not None,
                on_commit=self._followed,
            )
            self._links.stage(staged_change.communicators)
            self._watch()
        staged_change.start(answer)

    def unstage(self, generation: int) -> None:
        """Gives up a place that was staged in an older generation."""
        with self._training_state.lock:
            staged_change = self._next
            if staged_change is None or staged_change.generation >= generation:
                return
            self._next = None
            self._watch()
        staged_change.drop()

    def switch(self, generation: int, answer: Answer) -> None:
        """Has the staged place taken behind the commit at which everybody is asked to.

        Args:
            generation: that of the place.
            answer: told when it is taken, or cannot be.

        Raises:
            PlanariaError: there is no such place, or it is not ready.
        """
        staged_change = self._ready(generation)
        if staged_change is None:
            raise PlanariaError(
                ErrorReason.WRONG_STATE,
                f"no place of generation {generation} is staged",
                {"generation": str(generation)},
            )
        if not staged_change.answer_with(answer) and not staged_change.is_claimed:
            self._fence.fence_at_commit(generation)

    def watch(self, view: PlanView) -> None:
        """Watches the peers of a new place, and those of the one that is staged."""
        with self._training_state.lock:
            self._peers = view.peers
            self._watch()

    def behind(self, record: CommitRecord) -> StagedChange | None:
        """The place to be taken behind a commit; None: there is none, or nothing comes behind."""
        staged_change = self._ready(record.next_generation)
        is_over = self._training_state.is_last(record.step + 1)
        return (
            None if staged_change is None or staged_change.is_claimed or is_over else staged_change
        )

    def renew(
        self, context: TrainingContext, staged_change: StagedChange, record: CommitRecord
    ) -> bool:
        """Enters a commit behind which an unchanged pipeline goes on in the next generation.

        There is no moment without a promise.

        Returns:
            Whether it does. Otherwise nothing has been done: the pipeline is another, or the engine
            was fenced or halted meanwhile.
        """

        def change() -> None:
            staged_change.claim()
            renew_context(
                context,
                view=staged_change.view,
                generation=staged_change.generation,
                awaited=staged_change.communicators,
            )
            self._links.hand_over(staged_change.communicators)

        training_state = self._training_state
        with training_state.lock:
            if not staged_change.view.keeps_step or training_state.retained_work is None:
                return False
            try:
                self._fence.install(staged_change.generation, change)
            except StaleGenerationError:
                return False
            training_state.enter_commit(record, staged_change.retained_work(record.step + 1))
            self.watch(staged_change.view)
        context.trace()
        return True

    def take(self, staged_change: StagedChange, record: CommitRecord) -> TrainingContext:
        """Takes another place behind a commit, when its layers have that commit.

        Raises:
            FencedError: the engine was fenced meanwhile.
            PlanariaError: the layers do not come.
        """
        version = record.step + 1
        staged_change.wait_for_layers(version)

        def change() -> TrainingContext:
            self._training_state.account(record)
            return staged_change.take(version)

        with self._training_state.lock:
            try:
                context = self._fence.install(staged_change.generation, change)
            except StaleGenerationError as error:
                raise FencedError(staged_change.generation, error.newest) from None
            self._links.hand_over(staged_change.communicators, context.pipeline_groups)
            self._training_state.take(context, staged_change.retained_work(version), self._fence)
            self.watch(staged_change.view)
        self._has_moved = True
        return context

    def settle_in(self, context: TrainingContext) -> None:
        """Behind the first commit in a new place: everybody has done with what was before."""
        self._links.shut_retired("the plan changed")
        if self._has_moved:
            self._has_moved = False
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
        """Called with each commit that the layers of a staged place have."""
        is_next = record.next_generation == staged_change.generation
        if is_next and not staged_change.is_in_exchange and self.behind(record) is staged_change:
            self._on_join(staged_change, record)

    def _watch(self) -> None:
        staged = {} if self._next is None else self._next.view.peers
        self._failure_detector.watch({**staged, **self._peers})
