"""Somebody sets the coordinator's clock: no interval is longer or shorter for it."""

from datetime import timedelta

import pytest

from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.recovery.test_unreachable_holders import PAIRS, bring_back, lose
from unit.coordinator.simulation.checkpoint_world import announce, write
from unit.coordinator.simulation.world import running_world

HOUR = timedelta(hours=1).total_seconds()


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_job_trains_and_recovers_whatever_the_clock_says(seconds: float) -> None:
    world = await running_world(4)
    await world.train(2)
    world.clock.step(seconds)
    await world.advance(5)
    await world.train(1)
    assert not {"node_lost", "engine_lost"} & set(world.event_types())
    world.hold("quiesce")
    await world.kill_node("n3")
    world.clock.step(-2 * seconds)
    await world.advance(2)
    await world.release()
    await world.advance(2)
    await world.train(3)
    assert (await world.job()).state is JobState.RUNNING
    assert world.event_types().count("node_lost") == 1
    assert "engine_lost" not in world.event_types()


async def test_holders_are_waited_for_no_shorter_and_no_longer() -> None:
    """Guard: the deadline of `AwaitedState` is kept when some come back."""
    world = await running_world(
        resources=PAIRS,
        checkpoint={"path": "runs", "every_steps": 2},
        resilience={"fault_tolerance": 1, "unreachable_timeout_seconds": 60},
    )
    await world.train(2)
    await write(world, 2, announce(world, 2))
    await world.train(1)
    step = (await world.job()).step
    await world.add_node("n9", "prepare")  # which says that it reaches none of them
    away = [await lose(world, f"n{number}") for number in range(4)]
    await world.advance(15)
    world.clock.step(HOUR)
    await bring_back(world, *away[:2])
    assert (await world.job()).state is JobState.WAITING
    assert "job_restored" not in world.event_types()
    world.clock.step(-2 * HOUR)
    await bring_back(world, *away[2:])
    job = await world.job()
    assert (job.state, job.step) == (JobState.RUNNING, step)


async def test_failures_do_not_add_up_while_somebody_sets_the_clock_back() -> None:
    """A node is refused for three within an hour. Guard: `note_failure`."""
    world = await running_world(4)
    for _ in range(4):
        await world.train(1)
        (engine_id,) = world.agents["n3"].engines
        world.agents["n3"].lose_engine(engine_id)
        await world.advance(5)
        world.clock.step(-2 * HOUR)
    assert world.event_types().count("engine_lost") == 4
    assert not world.run.refused
