"""What is remembered of nodes that links failed with."""

import pytest

from planaria_coordinator.domain.engines.links import LinkFailure
from unit.coordinator.simulation.world import World, running_world


async def leave_out(world: World, node_id: str) -> float:
    """Let its links stall; returns how long the job does without it, in seconds."""
    accuser = world.engine_on(node_id).id
    for other in world.agents.keys() - {node_id}:
        world.tell_link_failed(
            world.agents[node_id], accuser, world.engine_on(other).id, LinkFailure.STALLED
        )
    await world.advance(2)
    assert node_id in world.run.left_out
    return world.run.cordoned[node_id].pause_seconds


@pytest.mark.parametrize(("is_evicted", "expected_seconds"), [(False, 60), (True, 30)])
async def test_a_node_that_was_unreachable_is_left_out_for_longer(
    is_evicted: bool, expected_seconds: float
) -> None:
    """It is the same machine still. Guard: `fault_found` keeps its pauses."""
    world = await running_world(6)
    assert await leave_out(world, "n3") == 30
    await world.advance(31)
    await world.train(3)
    await world.kill_node("n3")
    if is_evicted:
        await world.coordinator.cluster.evict("n3")
    await world.advance(2)
    await world.add_node("n3")
    await world.train(3)
    assert len(world.members()) == 6
    assert await leave_out(world, "n3") == expected_seconds
