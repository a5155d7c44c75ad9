"""Which nodes are left out when links failed, and when a process is believed to have ended."""

from collections.abc import Collection
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria_coordinator.domain.engines.links import (
    MAX_EXACT,
    Edge,
    FailedLink,
    LinkDirection,
    LinkFailure,
    looks_ended,
    nodes_to_leave_out,
)

NODES = tuple("abcdefg")
HOMES = {f"j/{node}/0/1": node for node in NODES} | {"j/a/1/2": "a"}


def edge(*nodes: str) -> Edge:
    return frozenset(nodes)


def edges(text: str) -> list[Edge]:
    return [edge(*pair) for pair in text.split()]


def link(of: str, to: str, failure: LinkFailure = LinkFailure.ENDED) -> FailedLink:
    return FailedLink(
        engine_id=f"j/{of}/0/1",
        peer_engine_id=f"j/{to}/0/1",
        failure=failure,
        direction=LinkDirection.OUTGOING,
        since_seconds=0.0,
    )


graphs = st.sets(
    st.frozensets(st.sampled_from(NODES), min_size=1, max_size=2), min_size=1, max_size=10
)


@given(graphs, st.sets(st.frozensets(st.sampled_from(NODES)), max_size=40))
def test_it_is_the_smallest_set_of_all_that_are_possible(
    graph: set[Edge], impossible: set[frozenset[str]]
) -> None:
    """As trying every set of nodes finds it."""
    every = chain.from_iterable(combinations(NODES, size) for size in range(len(NODES) + 1))
    suspects = frozenset(chain.from_iterable(graph))
    covers = [
        frozenset(nodes)
        for nodes in every
        if suspects.issuperset(nodes) and all(not each.isdisjoint(nodes) for each in graph)
    ]
    fewest = [cover for cover in covers if len(cover) == min(map(len, covers))]
    possible = [cover for cover in fewest if cover not in impossible]

    choice = nodes_to_leave_out(graph, goes_without=lambda n: frozenset(n) not in impossible)

    assert choice.is_possible == bool(possible)
    assert frozenset(choice.nodes) in (possible or fewest)


@given(st.sets(st.frozensets(st.integers(0, 40), min_size=2, max_size=2), min_size=20))
def test_of_many_a_set_is_named_that_covers_all(graph: set[frozenset[int]]) -> None:
    named = [frozenset(map(str, each)) for each in graph]
    if len(frozenset(chain.from_iterable(named))) <= MAX_EXACT:
        return
    choice = nodes_to_leave_out(named)
    assert all(not each.isdisjoint(choice.nodes) for each in named)
    assert choice == nodes_to_leave_out(named)


@pytest.mark.parametrize(
    ("graph", "preferred", "expected"),
    [
        ("ab", "", "a"),
        ("ab", "b", "b"),
        ("ab", "bda", "b"),
        ("ab cd", "dbac", "bd"),
        ("ab ac ad", "bcd", "a"),
        ("ab bc cd", "d", "bd"),
        ("aa ab", "b", "a"),
    ],
)
def test_of_equally_many_those_are_left_out_that_are_preferred(
    graph: str, preferred: str, expected: str
) -> None:
    choice = nodes_to_leave_out(edges(graph), preferred=preferred)
    assert sorted(choice.nodes) == list(expected)


def test_the_reason_names_who_cannot_reach_whom() -> None:
    choice = nodes_to_leave_out(edges("ab ac"))
    assert choice.reason == "a and b, c cannot reach each other"


@pytest.mark.parametrize(
    ("links", "viewers", "expected"),
    [
        ([link("b", "a")], "bcd", False),
        ([link("b", "a"), link("c", "a")], "bcd", True),
        ([link("b", "a"), link("c", "a", LinkFailure.REFUSED)], "bcd", True),
        ([link("b", "a"), link("c", "a", LinkFailure.UNREACHABLE)], "bcd", False),
        ([link("b", "a"), link("c", "a", LinkFailure.STALLED)], "bcd", False),
        ([link("b", "a"), link("b", "c"), link("b", "d")], "bcd", False),
        ([link("b", "a")], "b", True),
        ([link("b", "a", LinkFailure.UNREACHABLE)], "b", False),
        ([link("b", "a"), link("a", "b")], "b", False),
        ([link("b", "a"), link("c", "a"), link("a", "b")], "bcd", False),
    ],
)
def test_a_process_has_ended_if_enough_say_so(
    links: Collection[FailedLink], viewers: str, expected: bool
) -> None:
    """Two on other nodes, or all that could see it; and nobody whom it has accused."""
    seen = {f"j/{node}/0/1" for node in viewers}
    assert looks_ended("j/a/0/1", links, seen, HOMES) is expected


def test_engines_of_its_own_node_do_not_count() -> None:
    own = FailedLink(
        engine_id="j/a/1/2",
        peer_engine_id="j/a/0/1",
        failure=LinkFailure.ENDED,
        direction=LinkDirection.OUTGOING,
        since_seconds=0.0,
    )
    assert not looks_ended("j/a/0/1", [own], {"j/a/1/2"}, HOMES)


def test_two_that_accuse_the_same_others_are_not_believed() -> None:
    """Either pair may be at fault: neither is in all of the smallest sets."""
    links = [link(of, to) for of in "ab" for to in "cd"]
    viewers = [f"j/{node}/0/1" for node in "abcd"]
    for accused in "cd":
        assert not looks_ended(f"j/{accused}/0/1", links, viewers, HOMES)
    dead = [link(of, "c") for of in "ab"]
    assert looks_ended("j/c/0/1", dead, viewers, HOMES)
