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


def said(text: str, failure: LinkFailure = LinkFailure.ENDED) -> list[FailedLink]:
    """Of each pair, the first says so of the second."""
    return [link(pair[0], pair[-1], failure) for pair in text.split()]


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (said("b-a"), False),
        (said("b-a c-a"), True),
        ([*said("b-a"), *said("c-a", LinkFailure.REFUSED)], True),
        ([*said("b-a"), *said("c-a", LinkFailure.UNREACHABLE)], False),
        ([*said("b-a"), *said("c-a", LinkFailure.STALLED)], False),
        (said("b-a b-c b-d"), False),
        (said("b-a c-a a-b"), False),
        (said("b-a c-a a-d"), False),
        (said("b-a c-a d-a e-d f-d"), True),
        (said("b-a c-a c-d e-d"), True),
        (said("b-a c-a c-d"), False),
    ],
)
def test_a_process_has_ended_if_enough_say_so(
    links: Collection[FailedLink], expected: bool
) -> None:
    """Two on other nodes do, of which it accused nobody, unless they may be at fault themselves."""
    assert looks_ended("j/a/0/1", links) is expected


@pytest.mark.parametrize("accused", ["cd", "cde", "cdefghijklmno"])
def test_two_that_accuse_all_others_are_not_believed(accused: str) -> None:
    """Guard: the smallest covers; two liars would stop all healthy replicas."""
    links = [link(of, to) for of in "ab" for to in accused]
    assert not any(looks_ended(f"j/{node}/0/1", links) for node in accused)


def test_of_many_that_say_so_all_are_believed() -> None:
    """Guard: beyond twelve suspects it counts how many say so."""
    links = [link(of, "a") for of in "bcdefghijklmnopqrst"]
    assert looks_ended("j/a/0/1", [*links, link("b", "c")])


def test_those_who_had_another_left_out_are_believed_less() -> None:
    """One after the other, two liars would have all others stopped."""
    links = said("c-a d-a")
    assert looks_ended("j/a/0/1", links, edges("ab"))
    assert not looks_ended("j/a/0/1", links, edges("bc bd"))


def test_links_with_nodes_that_are_left_out_show_which_end_it_is() -> None:
    choice = nodes_to_leave_out(edges("bc"), earlier=edges("ac"), preferred="ab")
    assert choice.nodes == ("c",)
    alone = nodes_to_leave_out(edges("bc"), earlier=edges("ad ed"), preferred="ab")
    assert alone.nodes == ("b",)


def test_engines_of_its_own_node_do_not_count() -> None:
    own = FailedLink(
        engine_id="j/a/1/2",
        peer_engine_id="j/a/0/1",
        failure=LinkFailure.ENDED,
        direction=LinkDirection.OUTGOING,
        since_seconds=0.0,
    )
    assert not looks_ended("j/a/0/1", [own, *said("b-a")])
