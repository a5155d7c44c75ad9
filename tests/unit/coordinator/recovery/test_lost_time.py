"""What the step that was hit lost is stored some steps after the recovery."""

import pytest

from unit.coordinator.simulation.world import World, running_world


async def hit_world(lost_seconds: float) -> World:
    """Return a job that lost a node in step 3, which took so much longer than usual."""
    world = await running_world(4, training={"steps": 30})
    await world.train(2)
    world.begin_step()
    await world.kill_node("n0")
    world.clock.advance(lost_seconds)
    await world.train()
    await world.coordinator.flush()
    assert [each.lost_seconds for each in world.recoveries] == [None]
    return world


async def test_it_is_known_after_ten_whole_steps() -> None:
    world = await hit_world(2.5)
    await world.train(9)
    await world.coordinator.flush()
    assert world.recoveries[0].lost_seconds is None
    await world.train(1)
    await world.coordinator.flush()
    assert world.recoveries[0].lost_seconds == pytest.approx(2.5)


async def test_three_steps_are_enough_when_the_plan_changes() -> None:
    world = await hit_world(2.5)
    await world.train(3)
    await world.kill_node("n1")
    await world.train(2)
    await world.coordinator.flush()
    assert world.recoveries[0].lost_seconds == pytest.approx(2.5)


async def test_fewer_than_three_steps_tell_nothing() -> None:
    world = await hit_world(2.5)
    await world.train(1)
    await world.kill_node("n1")
    await world.train(14)
    await world.coordinator.flush()
    assert world.recoveries[0].lost_seconds is None
    assert world.recoveries[1].lost_seconds is not None


async def test_a_restart_of_the_coordinator_loses_nothing() -> None:
    world = await hit_world(2.5)
    await world.train(3)
    await world.coordinator.flush()
    await world.crash_coordinator()
    await world.reconnect()
    await world.train(8)
    await world.coordinator.flush()
    assert world.recoveries[0].lost_seconds == pytest.approx(2.5)


@pytest.mark.parametrize("crashes_within_recovery", [True, False])
async def test_a_restart_after_another_loss_loses_nothing(*, crashes_within_recovery: bool) -> None:
    """The steps that the first recovery is compared with were not stored before the second loss."""
    world = await hit_world(2.5)
    await world.train(3)
    if crashes_within_recovery:
        world.hold("activate")
    await world.kill_node("n1")
    assert len(world.recoveries) == 2 - crashes_within_recovery
    await world.crash_coordinator()
    for agent in world.agents.values():
        agent.release()
    await world.reconnect()
    await world.train(14)
    await world.coordinator.flush()
    first, second = world.recoveries
    assert first.lost_seconds == pytest.approx(2.5)
    assert second.lost_seconds is not None


async def test_the_end_of_the_job_is_the_end_of_the_steps() -> None:
    world = await running_world(4, training={"steps": 8})
    await world.train(2)
    world.begin_step()
    await world.kill_node("n0")
    world.clock.advance(2.5)
    await world.train(6)
    await world.coordinator.flush()
    await world.settle()
    assert world.recoveries[0].lost_seconds == pytest.approx(2.5)
