"""Changing the plan behind a commit: the place of the next generation, staged and then taken.

Staging goes on beside everything else. Taking the place is done by the training thread, between two
steps; for an unchanged pipeline in the same moment in which it enters the commit.
"""

from collections.abc import Callable, Mapping

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.groups.current_groups import Links
from planaria_worker.engine.groups.failure_detector import PeerWatch
from planaria_worker.engine.plan.activation import Activation, Answer, Builder
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.recovery.fence import FencedError, StaleGenerationError
from planaria_worker.engine.recovery.staging import NextPlace, StagedAnswer, require_stageable
from planaria_worker.engine.recovery.training_state import Standing
from planaria_worker.engine.step.commit_record import CommitRecord
from planaria_worker.engine.step.training_context import Place, renew_place

OnJoin = Callable[[NextPlace, CommitRecord], None]
"""Called when others have made the commit behind which a place is to be taken."""


class Handover:
    """The next place of an engine, if there is one; methods may be called from any thread."""

    def __init__(
        self,
        *,
        builder: Builder,
        job_secret: str,
        standing: Standing,
        links: Links,
        peer_watch: PeerWatch,
        on_join: OnJoin,
    ) -> None:
        self._builder = builder
        self._job_secret = job_secret
        self._fence = builder.around.fence
        self._standing = standing
        self._links = links
        self._peer_watch = peer_watch
        self._on_join = on_join
        self._next: NextPlace | None = None
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
        with self._standing.lock:
            place = self._standing.place if self._standing.is_in_place else None
            require_stageable(activation, view, place)
            self._next = next_place = NextPlace(
                builder=self._builder,
                job_secret=self._job_secret,
                activation=activation,
                view=view,
                is_in_exchange=place is not None,
                on_commit=self._followed,
            )
            self._links.stage(next_place.communicators)
            self._watch()
        next_place.start(answer)

    def unstage(self, generation: int) -> None:
        """Gives up a place that was staged in an older generation."""
        with self._standing.lock:
            next_place = self._next
            if next_place is None or next_place.generation >= generation:
                return
            self._next = None
            self._watch()
        next_place.drop()

    def switch(self, generation: int, answer: Answer) -> None:
        """Has the staged place taken behind the commit at which everybody is asked to.

        Args:
            generation: that of the place.
            answer: told when it is taken, or cannot be.

        Raises:
            PlanariaError: there is no such place, or it is not ready.
        """
        next_place = self._ready(generation)
        if next_place is None:
            raise PlanariaError(
                ErrorReason.WRONG_STATE,
                f"no place of generation {generation} is staged",
                {"generation": str(generation)},
            )
        if not next_place.answer_with(answer) and not next_place.is_claimed:
            self._fence.fence_at_commit(generation)

    def watch(self, view: PlanView) -> None:
        """Watches the peers of a new place, and those of the one that is staged."""
        with self._standing.lock:
            self._peers = view.peers
            self._watch()

    def behind(self, record: CommitRecord) -> NextPlace | None:
        """The place to be taken behind a commit; None: there is none, or nothing comes behind."""
        next_place = self._ready(record.next_generation)
        is_over = self._standing.is_last(record.step + 1)
        return None if next_place is None or next_place.is_claimed or is_over else next_place

    def renew(self, place: Place, next_place: NextPlace, record: CommitRecord) -> bool:
        """Enters a commit behind which an unchanged pipeline goes on in the next generation.

        There is no moment without a promise.

        Returns:
            Whether it does. Otherwise nothing has been done: the pipeline is another, or the engine
            was fenced or halted meanwhile.
        """

        def change() -> None:
            next_place.claim()
            renew_place(
                place,
                view=next_place.view,
                generation=next_place.generation,
                awaited=next_place.communicators,
            )
            self._links.hand_over(next_place.communicators)

        standing = self._standing
        with standing.lock:
            if not next_place.view.keeps_step or standing.promise is None:
                return False
            try:
                self._fence.install(next_place.generation, change)
            except StaleGenerationError:
                return False
            standing.enter_commit(record, next_place.promise(record.step + 1))
            self.watch(next_place.view)
        place.trace()
        return True

    def take(self, next_place: NextPlace, record: CommitRecord) -> Place:
        """Takes another place behind a commit, when its layers have that commit.

        Raises:
            FencedError: the engine was fenced meanwhile.
            PlanariaError: the layers do not come.
        """
        version = record.step + 1
        next_place.wait_for_layers(version)

        def change() -> Place:
            self._standing.account(record)
            return next_place.take(version)

        with self._standing.lock:
            try:
                place = self._fence.install(next_place.generation, change)
            except StaleGenerationError as error:
                raise FencedError(next_place.generation, error.newest) from None
            self._links.hand_over(next_place.communicators, place.pipeline_groups)
            self._standing.take(place, next_place.promise(version), self._fence)
            self.watch(next_place.view)
        self._has_moved = True
        return place

    def settle_in(self, place: Place) -> None:
        """Behind the first commit in a new place: everybody has done with what was before."""
        self._links.shut_retired("the plan changed")
        if self._has_moved:
            self._has_moved = False
            self._builder.around.store.keep(place.view.hosted_layers)

    def _ready(self, generation: int) -> NextPlace | None:
        next_place = self._next
        if next_place is None or next_place.generation != generation or not next_place.is_ready:
            return None
        return next_place

    def _followed(self, next_place: NextPlace, record: CommitRecord) -> None:
        """Called with each commit that the layers of a staged place have."""
        is_next = record.next_generation == next_place.generation
        if is_next and not next_place.is_in_exchange and self.behind(record) is next_place:
            self._on_join(next_place, record)

    def _watch(self) -> None:
        staged = {} if self._next is None else self._next.view.peers
        self._peer_watch.watch({**staged, **self._peers})
