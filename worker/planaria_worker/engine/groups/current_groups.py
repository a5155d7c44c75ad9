"""The groups that an engine is in: along its pipeline, and across the pipelines.

Those across are of one generation; at a fence the idle ones are set aside, so that the next one can
take them up. Those along the pipeline live as long as the pipeline does. When a plan is changed
behind a commit, the groups before it are retired: a peer may still be reading the last verdict from
them. A pipeline's may be many generations older than those across.
"""

import threading
from collections.abc import Collection, Iterable

from planaria_worker.engine.groups import Communicators, Group, GroupBroken
from planaria_worker.engine.plan.plan_view import GroupSpec


class CurrentGroups:
    """Holds the groups, so that any thread can shut them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._communicators: Communicators | None = None
        self._staged: Communicators | None = None
        self._retired: tuple[Communicators, ...] = ()
        self._pipeline: tuple[Group, ...] = ()
        self._retired_pipeline: tuple[Group, ...] = ()

    def begin(
        self,
        communicators: Communicators,
        *,
        sums: Iterable[GroupSpec] = (),
        kept: Collection[str] = (),
    ) -> Collection[str]:
        """Takes up the groups of a generation, which are to be made, and ends those before it.

        But for the groups of sums that all their members have set aside: the generation adopts them
        where it needs one of the same members. Every member comes to the same: groups are taken in
        the order of their ids, for specs in the order of the plan. When one of them was lost
        meanwhile, the others go on with it, and it cannot be made without them: the generation's
        groups are shut, as if it had been lost while they were made.

        Args:
            communicators: the generation's.
            sums: its groups of sums.
            kept: ids of the groups that all their members have set aside.

        Returns:
            Names of the groups that go on.
        """
        with self._lock:
            taken, loss = self._adopt_started(sums, kept)
            communicators.adopt(taken)
            if loss is not None:
                communicators.shut(f"a group that was to be kept is lost: {loss}")
            former, self._communicators = self._communicators, communicators
            for group in [] if former is None else list(former.groups.values()):
                if group not in self._pipeline:
                    group.shut("the plan changed")
        return taken.keys()

    def join_pipeline(self, groups: tuple[Group, ...]) -> None:
        """Says which groups are those along the pipeline."""
        with self._lock:
            self._pipeline = groups

    def stage(self, communicators: Communicators) -> None:
        """Notes the groups of a generation that has not begun; whoever made them shuts them."""
        with self._lock:
            self._staged = communicators

    def hand_over(
        self, communicators: Communicators, pipeline: tuple[Group, ...] | None = None
    ) -> None:
        """Takes up the groups of the next generation behind a commit; those before are retired.

        Args:
            communicators: the groups.
            pipeline: those along the pipeline; None: they remain.
        """
        with self._lock:
            if self._communicators is not None:
                self._retired += (self._communicators,)
            self._communicators, self._staged = communicators, None
            if pipeline is not None:
                self._retired_pipeline += self._pipeline
                self._pipeline = pipeline

    def shut_retired(self, reason: str) -> None:
        """Shuts the groups of earlier generations."""
        with self._lock:
            retired, self._retired = self._retired, ()
            groups, self._retired_pipeline = self._retired_pipeline, ()
            pipeline = self._pipeline
        for communicators in retired:
            _shut(communicators, reason, pipeline)
            groups += tuple(g for g in communicators.groups.values() if g not in pipeline)
        for group in groups:
            group.shut(reason)

    def set_aside(self, lost: Collection[str]) -> None:
        """Sets aside the groups of sums in which nothing is under way, for another generation.

        Args:
            lost: engine ids of those that are gone: their groups are of no use any more.
        """
        with self._lock:
            for group in self._groups_of_sums():
                if set(lost).isdisjoint(group.members):
                    group.set_aside()
                else:
                    group.shut("a member was lost")

    @property
    def idle_groups(self) -> list[Group]:
        """Those that were set aside, and still stand."""
        return [g for g in self._groups_of_sums() if g.is_aside and not g.is_shut]

    def _adopt_started(
        self, specs: Iterable[GroupSpec], kept: Collection[str]
    ) -> tuple[dict[str, Group], GroupBroken | None]:
        """Groups by the names that the specs have for them; and why one was lost, if one was."""
        found = sorted(
            (group for group in self._groups_of_sums() if group.group_id in kept),
            key=lambda group: group.group_id,
        )
        taken: dict[str, Group] = {}
        for spec in specs:
            same = [group for group in found if _is_for(spec, group)]
            if not same:
                continue
            found.remove(same[0])
            try:
                taken[spec.name] = same[0].take_up(spec.name)
            except GroupBroken as loss:
                return taken, loss
        return taken, None

    def _groups_of_sums(self) -> list[Group]:
        with self._lock:
            communicators = self._communicators
        groups = [] if communicators is None else list(communicators.groups.values())
        return [group for group in groups if not group.is_line]

    @property
    def is_pipeline_whole(self) -> bool:
        return not any(group.is_shut for group in self._pipeline)

    def shut(self, reason: str) -> None:
        """Ends whatever a thread waits for in any group."""
        with self._lock:
            pipeline = self._pipeline
        self.shut_sums(reason)
        for group in pipeline:
            group.shut(reason)

    def shut_sums(self, reason: str) -> None:
        """Ends whatever a thread waits for across the pipelines; the pipeline goes on."""
        with self._lock:
            communicators, pipeline = self._communicators, self._pipeline
        if communicators is not None:
            _shut(communicators, reason, pipeline)
        self.shut_retired(reason)

    def peer_lost(self, engine_id: str) -> None:
        """Ends the groups that a lost peer was in: they will never carry a message again.

        Where the pipeline is broken by it, the next thing is a fence.
        """
        with self._lock:
            if any(engine_id in group.members for group in self._pipeline):
                self.set_aside([engine_id])
            groups = [*self._pipeline, *self._retired_pipeline]
            for communicators in (self._communicators, self._staged, *self._retired):
                if communicators is not None:
                    groups += communicators.groups.values()
            for group in groups:
                if engine_id in group.members:
                    group.shut(f"{engine_id} ended")


def _is_for(spec: GroupSpec, group: Group) -> bool:
    return set(group.members) == set(spec.members) and group.is_brief == spec.is_brief


def _shut(communicators: Communicators, reason: str, pipeline: Iterable[Group]) -> None:
    """Shuts all groups but those along the pipeline, which may be of an earlier generation."""
    kept = set(pipeline)
    names = {name for name, group in list(communicators.groups.items()) if group in kept}
    communicators.shut(reason, keeping=names)
