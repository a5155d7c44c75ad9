"""Groups are shut when everybody has done with them, and not before."""

from typing import cast

import pytest

from planaria_worker.engine.communication import Communicators, Group
from planaria_worker.engine.links import Links


class FakeGroup:
    """A group that only knows whether it is shut."""

    def __init__(self, name: str, *members: str) -> None:
        self.name = name
        self.members = members
        self.is_shut = False

    def shut(self, _reason: str) -> None:
        self.is_shut = True


class FakeCommunicators:
    """Groups of one generation."""

    def __init__(self, *groups: FakeGroup) -> None:
        self.groups = {group.name: group for group in groups}

    def shut(self, reason: str, *, keeping: set[str]) -> None:
        for name, group in self.groups.items():
            if name not in keeping:
                group.shut(reason)


class Generation:
    """A pipeline's group and one across, of one generation."""

    def __init__(self, *members: str) -> None:
        self.pipeline = FakeGroup("forward-0", *members)
        self.across = FakeGroup("last-ranks", *members, "other")
        self.fake = FakeCommunicators(self.pipeline, self.across)

    @property
    def communicators(self) -> Communicators:
        return cast(Communicators, self.fake)

    @property
    def along(self) -> tuple[Group, ...]:
        return (cast(Group, self.pipeline),)

    @property
    def shut(self) -> tuple[bool, bool]:
        """Along the pipeline, and across."""
        return self.pipeline.is_shut, self.across.is_shut


@pytest.fixture
def old() -> Generation:
    return Generation("a", "b")


@pytest.fixture
def links(old: Generation) -> Links:
    links = Links()
    links.begin(old.communicators)
    links.join_pipeline(old.along)
    return links


def test_the_groups_before_a_handover_last_until_its_first_commit(
    links: Links, old: Generation
) -> None:
    """Peers may still be reading the last verdict from them."""
    new = Generation("a", "c")
    links.hand_over(new.communicators, new.along)
    assert old.shut == (False, False)
    links.shut_retired("the plan changed")
    assert (old.shut, new.shut) == ((True, True), (False, False))


def test_a_pipeline_that_is_kept_outlives_its_generation(links: Links, old: Generation) -> None:
    new = Generation("x", "y")  # its pipeline's group has the same name
    links.hand_over(new.communicators)
    links.shut_retired("the plan changed")
    assert (old.shut, new.shut) == ((False, True), (False, False))
    links.shut_sums("fenced")
    assert (old.shut, new.shut) == ((False, True), (True, True))
    assert links.is_pipeline_whole
    links.shut("halted")
    assert old.shut == (True, True)


def test_a_pipeline_that_was_kept_ends_as_others_do(links: Links, old: Generation) -> None:
    """Its generation ended long before it. Guard: a pipeline is retired by itself."""
    links.hand_over(Generation("a", "b").communicators)
    links.shut_retired("the plan changed")
    new = Generation("a", "c")
    links.hand_over(new.communicators, new.along)
    assert not old.pipeline.is_shut
    links.shut_retired("the plan changed")
    assert (old.shut, new.shut) == ((True, True), (False, False))


def test_a_lost_peer_ends_a_retired_pipeline(links: Links, old: Generation) -> None:
    links.hand_over(Generation("a", "b").communicators)
    links.shut_retired("the plan changed")
    links.hand_over(Generation("a", "c").communicators, Generation("a", "c").along)
    links.peer_lost("b")
    assert old.pipeline.is_shut


@pytest.mark.parametrize("end", [Links.shut_sums, Links.shut])
def test_a_fence_shuts_what_was_retired(links: Links, old: Generation, end: "object") -> None:
    new = Generation("a", "c")
    links.hand_over(new.communicators, new.along)
    end(links, "fenced")  # type: ignore[operator]
    assert old.shut == (True, True)


def test_a_lost_peer_is_in_groups_of_three_kinds(links: Links, old: Generation) -> None:
    """Those in use, those before them, and those that are staged."""
    new, staged = Generation("a", "c"), Generation("a", "b")
    links.hand_over(new.communicators, new.along)
    links.stage(staged.communicators)
    links.peer_lost("b")
    assert (old.shut, new.shut, staged.shut) == ((True, True), (False, False), (True, True))
