"""The groups that an engine has now: the links of its pipeline, and the data-parallel groups.

Data-parallel groups belong to one generation. A fence retains those that are idle, so that the next
generation can reopen them. Pipeline links live as long as the pipeline, and may be many generations
older. When a plan changes at a commit, the groups before it are retired rather than shut: a peer
may still be reading the last decision from them.
"""

import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from planaria_worker.engine.groups.communicators import Communicators
from planaria_worker.engine.groups.data_parallel_group import DataParallelGroup
from planaria_worker.engine.groups.group import Group, GroupBroken
from planaria_worker.engine.groups.group_spec import GroupSpec
from planaria_worker.engine.groups.pipeline_link import PipelineLink
from planaria_worker.engine.groups.transport.backends import PeerConnection


class CurrentGroups:
    """Holds the groups, so that any thread can shut them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._communicators: Communicators | None = None
        self._staged: Communicators | None = None
        self._retired: tuple[Communicators, ...] = ()
        self._pipeline: tuple[PipelineLink, ...] = ()
        self._retired_pipeline: tuple[PipelineLink, ...] = ()

    def begin(
        self,
        communicators: Communicators,
        *,
        data_parallel: Iterable[GroupSpec] = (),
        kept: Collection[str] = (),
    ) -> Collection[str]:
        """Make a generation's groups, which are to be built, the current ones; end those before it.

        Data-parallel groups that all their members have retained are reopened where the generation
        needs one of the same kind and members. All members choose alike: they go through the groups
        in the order of their ids, and through the specs in the order of the plan. If such a group
        was lost here meanwhile, the other members reopen it, so it cannot be rebuilt without them:
        the generation's groups are shut, as if the peer had been lost while they were built.

        Args:
            communicators: of the generation.
            data_parallel: its data-parallel groups.
            kept: ids of the groups that all their members have retained.

        Returns:
            Names of the groups that were reopened.
        """
        with self._lock:
            reopened, loss = self._reopen(data_parallel, kept)
            communicators.adopt(reopened)
            if loss is not None:
                communicators.shut(f"a retained group is lost: {loss}")
            former, self._communicators = self._communicators, communicators
            for group in () if former is None else former.groups.all:
                if group not in self._pipeline:
                    group.shut("the plan changed")
        return reopened.keys()

    def set_pipeline(self, links: tuple[PipelineLink, ...]) -> None:
        """Replace the links of the pipeline."""
        with self._lock:
            self._pipeline = links

    def stage(self, communicators: Communicators) -> None:
        """Register the groups of a generation that has not begun; the caller shuts them."""
        with self._lock:
            self._staged = communicators

    def hand_over(
        self, communicators: Communicators, pipeline: tuple[PipelineLink, ...] | None = None
    ) -> None:
        """Make the groups of the next generation the current ones at a commit; retire the others.

        Args:
            communicators: of the next generation.
            pipeline: the links of its pipeline; None if they stay the same.
        """
        with self._lock:
            if self._communicators is not None:
                self._retired += (self._communicators,)
            self._communicators, self._staged = communicators, None
            if pipeline is not None:
                self._retired_pipeline += self._pipeline
                self._pipeline = pipeline

    def shut_retired(self, reason: str) -> None:
        """Shut the groups of earlier generations."""
        with self._lock:
            retired, self._retired = self._retired, ()
            links, self._retired_pipeline = self._retired_pipeline, ()
            pipeline = self._pipeline
        groups: list[Group[Any]] = [*links]
        for communicators in retired:
            communicators.shut(reason, keeping=pipeline)
            groups += [group for group in communicators.groups.all if group not in pipeline]
        for group in groups:
            group.shut(reason)

    def retain_idle(self, lost: Collection[str]) -> None:
        """Retain the idle data-parallel groups for a later generation.

        Args:
            lost: ids of lost engines; the groups they were in are shut.
        """
        with self._lock:
            for group in self._data_parallel():
                if set(lost).isdisjoint(group.members):
                    group.retain()
                else:
                    group.shut("a member was lost")

    @property
    def idle_groups(self) -> list[DataParallelGroup]:
        """Those that are retained and were not lost since."""
        return [group for group in self._data_parallel() if group.is_retained and not group.is_shut]

    @property
    def is_pipeline_healthy(self) -> bool:
        """Whether no link of the pipeline is lost."""
        return not any(link.is_shut for link in self._pipeline)

    def shut(self, reason: str) -> None:
        """End all waits in any group."""
        with self._lock:
            pipeline = self._pipeline
        self.shut_data_parallel(reason)
        for link in pipeline:
            link.shut(reason)

    def shut_data_parallel(self, reason: str) -> None:
        """End all waits across the pipelines; the pipeline goes on."""
        with self._lock:
            communicators, pipeline = self._communicators, self._pipeline
        if communicators is not None:
            communicators.shut(reason, keeping=pipeline)
        self.shut_retired(reason)

    def peer_lost(self, engine_id: str, why: str = "ended") -> None:
        """Shut the groups of a lost peer: they will never carry a message again.

        If that breaks the pipeline, a fence comes next: retain the idle data-parallel groups.
        """
        with self._lock:
            if any(engine_id in link.members for link in self._pipeline):
                self.retain_idle([engine_id])
            for group in self._all():
                if engine_id in group.members:
                    group.shut(f"{engine_id} {why}")

    @property
    def peer_connections(self) -> Sequence[tuple[str, PeerConnection]]:
        """The connections of all groups whose other end is known, with the engine there."""
        with self._lock:
            groups = self._all()
        return [
            (group.members[each.rank], each) for group in groups for each in group.peer_connections
        ]

    def _all(self) -> list[Group[Any]]:
        groups: list[Group[Any]] = [*self._pipeline, *self._retired_pipeline]
        for communicators in (self._communicators, self._staged, *self._retired):
            if communicators is not None:
                groups += communicators.groups.all
        return groups

    def _data_parallel(self) -> Collection[DataParallelGroup]:
        with self._lock:
            communicators = self._communicators
        return () if communicators is None else communicators.groups.data_parallel.values()

    def _reopen(
        self, specs: Iterable[GroupSpec], kept: Collection[str]
    ) -> tuple[dict[str, DataParallelGroup], GroupBroken | None]:
        """Groups by the names that the specs have for them; and why one was lost, if one was."""
        found = sorted(
            (group for group in self._data_parallel() if group.group_id in kept),
            key=lambda group: group.group_id,
        )
        reopened: dict[str, DataParallelGroup] = {}
        for spec in specs:
            same = [group for group in found if _is_for(spec, group)]
            if not same:
                continue
            found.remove(same[0])
            try:
                reopened[spec.name] = same[0].reopen(spec.name)
            except GroupBroken as loss:
                return reopened, loss
        return reopened, None


def _is_for(spec: GroupSpec, group: DataParallelGroup) -> bool:
    return set(group.members) == set(spec.members) and group.spec.kind is spec.kind
