"""Every combination of what one engine may say of its peers: no other is stopped on its word.

The liar says of each peer that it ended, refuses, stalls or is unreachable, or says nothing. It
does so while all train, and in the recovery from the loss of a node. Nodes may be left out for a
while; nobody that lives is taken to have ended, and the job goes on with all its steps.
"""

from collections.abc import Iterable, Iterator
from itertools import product

import pytest

from planaria_coordinator.domain.engines.links import LinkFailure
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import World, running_world

NODES = ("n0", "n1", "n2", "n3")
DEAD = "n3"
PAIRS = {"min_nodes_per_pipeline": 2}
ALONE = {"min_nodes_per_pipeline": 1}
UNSEEN = "n1"
"""Without the dead node n0 alone is connected with it in pipelines of two: it may be believed."""

Lie = dict[str, LinkFailure]


def lies(peers: Iterable[str], failures: Iterable[LinkFailure]) -> Iterator[Lie]:
    """Yield everything that may be said of some peers."""
    peers, kinds = tuple(peers), (None, *failures)
    for said in product(kinds, repeat=len(peers)):
        lie = {peer: kind for peer, kind in zip(peers, said, strict=True) if kind is not None}
        if lie:
            yield lie


def tell(world: World, liar: str, lie: Lie) -> None:
    engines = {node_id: world.engine_on(node_id).id for node_id in (liar, *lie)}
    for peer, failure in lie.items():
        world.tell_link_failed(world.agents[liar], engines[liar], engines[peer], failure)


async def problem(resources: dict[str, int], liar: str, lie: Lie, *, one_dies: bool) -> str:
    """Say what goes wrong when one engine lies; empty if nothing does."""
    world = await running_world(len(NODES), resources=resources)
    await world.train(2)
    if one_dies:
        world.hold("quiesce")
        await world.kill_node(DEAD)
    tell(world, liar, lie)
    await world.settle()
    await world.release()
    await world.advance(3)
    stopped = {e.node_id for e in world.events if e.type in ("engine_lost", "node_lost")}
    may_stop = {DEAD, *([UNSEEN] if resources is PAIRS else ())} if one_dies else set()
    step = (await world.job()).step
    await world.train(3)
    job = await world.job()
    await world.stop()
    what = f"pairs: {resources is PAIRS}, death: {one_dies}, {liar} says {lie}"
    if stopped - may_stop:
        return f"{what}: {stopped} stopped"
    if step < 2 or (job.state, job.step) != (JobState.RUNNING, step + 3):
        return f"{what}: {job.state} at step {job.step} after {step}, {job.error}"
    return ""


async def search(failures: Iterable[LinkFailure]) -> int:
    """Go through all lies; return how many there are."""
    failures, num_lies = tuple(failures), 0
    for resources, liar, one_dies in product((PAIRS, ALONE), NODES[:2], (False, True)):
        peers = [node_id for node_id in NODES if node_id != liar]
        peers = [each for each in peers if not (one_dies and each == DEAD)]
        for lie in lies(peers, failures):
            num_lies += 1
            assert not await problem(resources, liar, lie, one_dies=one_dies)
    return num_lies


async def test_whatever_one_engine_says_of_its_peers_nobody_else_is_stopped() -> None:
    """Guards: `looks_ended` needs two nodes; `is_spare`."""
    assert await search([LinkFailure.ENDED]) == 2 * 2 * (7 + 3)


@pytest.mark.slow
async def test_whatever_one_engine_says_in_any_words_nobody_else_is_stopped() -> None:
    assert await search(LinkFailure) == 2 * 2 * (124 + 24)
