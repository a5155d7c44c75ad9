"""Who sends to whom in a step, and whether some engines hold every layer."""

from dataclasses import replace

import pytest

from planaria_coordinator.domain.placement.peers import holds_every_layer, roles_of
from planaria_coordinator.domain.placement.placement import Placement
from unit.coordinator.protocol.cluster import Cluster, first_run

PAIRS = Cluster(training=("a0", "a1", "b0", "b1"))


def placement_of(cluster: Cluster) -> Placement:
    placement = first_run(3, cluster).placement
    assert placement is not None
    return placement


def node_names(placement: Placement) -> dict[str, str]:
    return {e.split("/")[1]: e for e in placement.engine_ids}


@pytest.mark.parametrize(
    ("pair", "expected"),
    [("a0 a1", True), ("a0 b0", True), ("a1 b1", True), ("a0 b1", False), ("a1 b0", False)],
)
def test_neighbours_and_holders_of_a_layer_send_to_each_other(pair: str, expected: bool) -> None:
    run = first_run(3, PAIRS)
    placement = placement_of(PAIRS)
    roles = roles_of(placement, placement.engine_ids, run.requirements)
    a, b = (roles[node_names(placement)[name]] for name in pair.split())
    assert a.sends_to(b) is b.sends_to(a) is expected


def test_a_follower_votes_with_the_last_stages() -> None:
    run = first_run(3, PAIRS)
    placement = replace(placement_of(PAIRS), followers={"job/c0/0/9": (0,)})
    roles = roles_of(placement, placement.engine_ids, run.requirements)
    names = node_names(placement)
    follower, first, last = roles[names["c0"]], roles[names["a0"]], roles[names["a1"]]
    assert follower.sends_to(first), "they sum layer 0"
    assert follower.sends_to(last), "they vote"
    assert not replace(follower, votes=False).sends_to(last)


def test_tied_embeddings_are_summed_between_the_ends_of_a_pipeline() -> None:
    run = first_run(3, PAIRS)
    placement = placement_of(PAIRS)
    tied = replace(run.requirements, ties_embeddings=True)
    roles = roles_of(placement, placement.engine_ids, tied)
    names = node_names(placement)
    assert roles[names["a0"]].sends_to(roles[names["b1"]])


def test_of_ten_thousand_engines_only_some_are_looked_at() -> None:
    """The coordinator asks this for each set of nodes that it could do without."""
    nodes = tuple(f"{n}" for n in range(10_000))
    run, placement = first_run(3, Cluster(training=nodes)), placement_of(Cluster(training=nodes))
    asked: list[str] = []

    def is_there(engine_id: str) -> bool:
        asked.append(engine_id)
        return engine_id != "job/0/0/1"

    assert holds_every_layer(placement, is_there, run.requirements)
    assert len(asked) < 10


@pytest.mark.parametrize(
    ("gone", "followed", "expected"),
    [("a0", (), True), ("a0 b1", (), True), ("a0 b0", (), False), ("a0 b0", (0,), True)],
)
def test_layers_that_nobody_holds_any_more_are_missed(
    gone: str, followed: tuple[int, ...], expected: bool
) -> None:
    run, names = first_run(3, PAIRS), node_names(placement_of(PAIRS))
    placement = replace(placement_of(PAIRS), followers={"job/c0/0/9": followed})
    lost = {names[name] for name in gone.split()}
    assert holds_every_layer(placement, lambda e: e not in lost, run.requirements) is expected
