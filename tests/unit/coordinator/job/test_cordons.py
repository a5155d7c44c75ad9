"""What is remembered of nodes that links failed with."""

import pytest

from planaria_coordinator.domain.engines.links import LinkFailure
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import World, running_world


async def leave_out(world: World, node_id: str) -> float:
    """Let its links stall; returns how long the job does without it, in seconds."""
    accuser = world.engine_on(node_id).id
    for other in world.agents.keys() - {node_id}:
        world.tell_link_failed(
            world.agents[node_id], accuser, world.engine_on(other).id, LinkFailure.STALLED
        )
    await world.advance(2)
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


async def restart(world: World) -> None:
    await world.crash_coordinator()
    await world.reconnect()


async def test_a_pause_goes_on_when_the_coordinator_is_replaced() -> None:
    """Guard: `restart_cordons` counts what has passed."""
    world = await running_world(6)
    await leave_out(world, "n3")
    for _ in range(4):
        await world.advance(6)
        assert world.run.left_out.keys() == {"n3"}
        await restart(world)
    await world.advance(6)
    assert not world.run.left_out


async def test_what_was_said_long_ago_counts_no_more_when_the_coordinator_is_replaced() -> None:
    """Two had a node left out: they are believed of another one. Guard: `restart_cordons`."""
    world = await running_world(6)
    for node_id in ("n3", "n4"):
        accused = world.engine_on(node_id).id
        for other in ("n1", "n2"):
            accuser = world.engine_on(other).id
            world.tell_link_failed(world.agents[other], accuser, accused, LinkFailure.ENDED)
        await world.settle()
        assert accused not in world.run.engines
        await world.advance(31)
        await world.train(3)
        await restart(world)
        await world.advance(1)
        await world.train(1)


async def let_in_at_once() -> World:
    """Run a job that left a node out, and then lost another: no plan is made without the first."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    assert await leave_out(world, "n3")
    world.planner.min_size = 3
    await world.kill_node("n0")
    await world.advance(4)
    return world


async def test_nodes_are_let_in_again_at_once_if_no_plan_is_made_without_them() -> None:
    """The job would wait for the end of their pauses."""
    world = await let_in_at_once()
    assert not world.run.left_out
    await world.advance(6)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 3


async def test_a_node_that_was_let_in_is_no_suspect_longer_because_of_another_coordinator() -> None:
    """Guard: a pause that was lifted does not go on."""
    world = await let_in_at_once()
    await restart(world)
    cordon = world.run.cordoned["n3"]
    assert cordon.is_over
    assert cordon.end_seconds <= world.clock.monotonic()
