"""Groups are shut when everybody has done with them, and not before."""

from collections.abc import Collection, Mapping
from typing import cast

import pytest

from planaria_worker.engine.groups import (
    Communicators,
    DataParallelGroup,
    GroupBroken,
    GroupKind,
    Groups,
    GroupSpec,
    PipelineLink,
)
from planaria_worker.engine.groups.current_groups import CurrentGroups


class FakeGroup:
    """A group that only knows whether it is shut, retained, or in use."""

    def __init__(self, name: str, *members: str, kind: GroupKind = GroupKind.GRADIENT_SUM) -> None:
        self.spec = GroupSpec(name=name, kind=kind, members=members)
        self.group_id = f"1/{name}"
        self.name = name
        self.members = members
        self.is_shut = False
        self.is_retained = False
        self.is_busy = False
        self.heir: FakeGroup | None = None

    def shut(self, _reason: str) -> None:
        self.is_shut = True

    def shut_unless_retained(self, _reason: str) -> None:
        self.is_shut |= not self.is_retained

    def retain(self) -> None:
        self.is_retained |= not self.is_busy

    def reopen(self, name: str) -> "FakeGroup":
        if self.is_shut:
            raise GroupBroken(f"group {self.name}: ended")
        self.is_shut = True
        self.heir = FakeGroup(name, *self.members, kind=self.spec.kind)
        self.heir.group_id = self.group_id
        return self.heir


class FakeCommunicators:
    """Groups of one generation."""

    def __init__(self, *groups: FakeGroup) -> None:
        self.by_name = {group.name: group for group in groups}
        self.reason = ""

    @property
    def groups(self) -> Groups:
        links = {n: g for n, g in self.by_name.items() if g.spec.kind.is_link}
        sums = {n: g for n, g in self.by_name.items() if not g.spec.kind.is_link}
        return Groups(
            links=cast(dict[str, PipelineLink], links),
            data_parallel=cast(dict[str, DataParallelGroup], sums),
        )

    def adopt(self, sums: Mapping[str, FakeGroup]) -> None:
        self.by_name |= sums

    def shut(self, reason: str, *, keeping: Collection[object] = ()) -> None:
        self.reason = reason
        for group in self.by_name.values():
            if group not in keeping:
                group.shut_unless_retained(reason)


class Generation:
    """A pipeline's group and one across, of one generation."""

    def __init__(self, *members: str) -> None:
        self.pipeline = FakeGroup("forward-0", *members, kind=GroupKind.ACTIVATIONS)
        self.across = FakeGroup("last-ranks", *members, "other")
        self.fake = FakeCommunicators(self.pipeline, self.across)

    @property
    def communicators(self) -> Communicators:
        return cast(Communicators, self.fake)

    @property
    def along(self) -> tuple[PipelineLink, ...]:
        return (cast(PipelineLink, self.pipeline),)

    @property
    def shut(self) -> tuple[bool, bool]:
        """Along the pipeline, and across."""
        return self.pipeline.is_shut, self.across.is_shut


@pytest.fixture
def old() -> Generation:
    return Generation("a", "b")


@pytest.fixture
def links(old: Generation) -> CurrentGroups:
    links = CurrentGroups()
    links.begin(old.communicators)
    links.set_pipeline(old.along)
    return links


def test_the_groups_before_a_handover_last_until_its_first_commit(
    links: CurrentGroups, old: Generation
) -> None:
    """Peers may still be reading the last decision from them."""
    new = Generation("a", "c")
    links.hand_over(new.communicators, new.along)
    assert old.shut == (False, False)
    links.shut_retired("the plan changed")
    assert (old.shut, new.shut) == ((True, True), (False, False))


def test_a_pipeline_that_is_kept_outlives_its_generation(
    links: CurrentGroups, old: Generation
) -> None:
    new = Generation("x", "y")  # its pipeline's group has the same name
    links.hand_over(new.communicators)
    links.shut_retired("the plan changed")
    assert (old.shut, new.shut) == ((False, True), (False, False))
    links.shut_data_parallel("fenced")
    assert (old.shut, new.shut) == ((False, True), (True, True))
    assert links.is_pipeline_healthy
    links.shut("halted")
    assert old.shut == (True, True)


def test_a_pipeline_that_was_kept_ends_as_others_do(links: CurrentGroups, old: Generation) -> None:
    """Its generation ended long before it. Guard: a pipeline is retired by itself."""
    links.hand_over(Generation("a", "b").communicators)
    links.shut_retired("the plan changed")
    new = Generation("a", "c")
    links.hand_over(new.communicators, new.along)
    assert not old.pipeline.is_shut
    links.shut_retired("the plan changed")
    assert (old.shut, new.shut) == ((True, True), (False, False))


def test_a_lost_peer_ends_a_retired_pipeline(links: CurrentGroups, old: Generation) -> None:
    links.hand_over(Generation("a", "b").communicators)
    links.shut_retired("the plan changed")
    links.hand_over(Generation("a", "c").communicators, Generation("a", "c").along)
    links.peer_lost("b")
    assert old.pipeline.is_shut


@pytest.mark.parametrize("end", [CurrentGroups.shut_data_parallel, CurrentGroups.shut])
def test_a_fence_shuts_what_was_retired(
    links: CurrentGroups, old: Generation, end: "object"
) -> None:
    new = Generation("a", "c")
    links.hand_over(new.communicators, new.along)
    end(links, "fenced")  # type: ignore[operator]
    assert old.shut == (True, True)


def test_a_lost_peer_is_in_groups_of_three_kinds(links: CurrentGroups, old: Generation) -> None:
    """Those in use, those before them, and those that are staged."""
    new, staged = Generation("a", "c"), Generation("a", "b")
    links.hand_over(new.communicators, new.along)
    links.stage(staged.communicators)
    links.peer_lost("b")
    assert (old.shut, new.shut, staged.shut) == ((True, True), (False, False), (True, True))


def spec(name: str, *members: str) -> GroupSpec:
    return GroupSpec(name=name, kind=GroupKind.GRADIENT_SUM, members=members)


class TestRetainIdle:
    """A fence ends what is under way across the pipelines; the rest can be used again."""

    def test_idle_groups_without_a_lost_member_outlive_the_fence(
        self, links: CurrentGroups, old: Generation
    ) -> None:
        links.retain_idle(["gone"])
        links.shut("fenced")
        assert old.shut == (True, False)
        assert [group.group_id for group in links.idle_groups] == ["1/last-ranks"]

    def test_busy_groups_do_not_outlive_the_fence(
        self, links: CurrentGroups, old: Generation
    ) -> None:
        old.across.is_busy = True
        links.retain_idle([])
        links.shut("fenced")
        assert old.shut == (True, True)
        assert links.idle_groups == []

    def test_groups_with_a_lost_member_do_not_outlive_the_fence(
        self, links: CurrentGroups, old: Generation
    ) -> None:
        """Even if it was retained before anybody knew."""
        links.retain_idle([])
        links.retain_idle(["other"])
        assert old.across.is_shut
        assert links.idle_groups == []

    def test_a_broken_pipeline_retains_the_idle_groups(
        self, links: CurrentGroups, old: Generation
    ) -> None:
        links.peer_lost("b")
        assert old.shut == (True, True)  # b was in both
        new = Generation("a", "c")
        new.across.members = ("a", "other")
        links.begin(new.communicators)
        links.set_pipeline(new.along)
        links.peer_lost("c")
        links.shut("broken")
        assert new.shut == (True, False)

    def test_a_link_is_not_retained(self, old: Generation) -> None:
        """Before the place is taken, nobody has said which groups are along the pipeline."""
        links = CurrentGroups()
        links.begin(old.communicators)
        links.retain_idle([])
        assert (old.pipeline.is_retained, old.across.is_retained) == (False, True)

    def test_a_retained_group_is_reused_for_the_same_members(
        self, links: CurrentGroups, old: Generation
    ) -> None:
        """In whichever order the plan has them."""
        links.retain_idle([])
        wanted = [spec("owners-3", "other", "b", "a"), spec("owners-0", "a", "b")]
        new = Generation("a", "b")
        names = links.begin(
            new.communicators, data_parallel=wanted, kept={"1/last-ranks", "1/forward-0"}
        )
        assert set(names) == {"owners-3"}
        assert new.fake.by_name["owners-3"].group_id == "1/last-ranks"
        assert old.shut == (False, True)

    def test_groups_with_the_same_members_are_distinguished_by_id(self) -> None:
        links, fake = (
            CurrentGroups(),
            FakeCommunicators(FakeGroup("z", "a", "b"), FakeGroup("y", "b", "a")),
        )
        links.begin(cast(Communicators, fake))
        links.retain_idle([])
        wanted = [spec("owners-0", "a", "b"), spec("last-ranks", "a", "b")]
        new = FakeCommunicators()
        links.begin(cast(Communicators, new), data_parallel=wanted, kept={"1/z", "1/y"})
        ids = {name: group.group_id for name, group in new.by_name.items()}
        assert ids == {"owners-0": "1/y", "last-ranks": "1/z"}

    def test_a_group_for_small_sums_is_not_reopened_for_gradients(self) -> None:
        """A follower has become the last rank of nobody: both groups have the same members now."""
        owners = FakeGroup("owners-2", "a", "b", "c")
        brief = FakeGroup("last-ranks", "a", "b", "c", kind=GroupKind.VOTE_SUM)
        links = CurrentGroups()
        links.begin(cast(Communicators, FakeCommunicators(owners, brief)))
        links.retain_idle([])
        new = FakeCommunicators()
        wanted = [
            spec("owners-3", "c", "b", "a"),
            GroupSpec(name="last-ranks", members=("c", "a", "b"), kind=GroupKind.VOTE_SUM),
        ]
        links.begin(
            cast(Communicators, new), data_parallel=wanted, kept={"1/last-ranks", "1/owners-2"}
        )
        assert new.by_name == {"owners-3": owners.heir, "last-ranks": brief.heir}

    def test_a_group_that_not_all_members_kept_is_rebuilt(
        self, links: CurrentGroups, old: Generation
    ) -> None:
        links.retain_idle([])
        new = FakeCommunicators()
        links.begin(cast(Communicators, new), data_parallel=[spec("last-ranks", "a", "b", "other")])
        assert new.by_name == {}
        assert old.shut == (False, True)

    def test_a_member_lost_during_the_build_ends_the_new_groups(self) -> None:
        """The others go on with it: a group made without them would never stand.

        Guard: kept groups are shut, since nobody else could end it.
        """
        kept, lost = FakeGroup("kept", "a", "b"), FakeGroup("lost", "a", "b", "other")
        links = CurrentGroups()
        links.begin(cast(Communicators, FakeCommunicators(kept, lost)))
        links.retain_idle([])
        links.peer_lost("other")
        wanted = [spec("owners-2", "a", "b"), spec("owners-0", "a", "b", "other")]
        new = FakeCommunicators()
        links.begin(cast(Communicators, new), data_parallel=wanted, kept={"1/kept", "1/lost"})
        assert new.reason == "a retained group is lost: group lost: ended"
        assert kept.heir is not None
        assert kept.heir.is_shut

    def test_a_retired_group_is_not_reused(self, links: CurrentGroups, old: Generation) -> None:
        links.retain_idle([])
        links.hand_over(Generation("a", "c").communicators)
        links.shut_retired("the plan changed")
        assert old.across.is_shut
