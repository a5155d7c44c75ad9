"""What agents report they keep until the coordinator has stored it."""

import asyncio

import pytest

from planaria_common.errors import PlanariaError
from planaria_coordinator.application.agents.agent_messages import CheckpointReport
from planaria_coordinator.domain.engines.outcome import CheckpointTaken
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import World, running_world


def stored_steps(world: World) -> list[int]:
    return sorted(step for _, step in world.database.tables.steps)


def num_unacknowledged(world: World) -> int:
    return sum(len(agent.unacknowledged) for agent in world.agents.values())


async def restart(world: World) -> None:
    await world.crash_coordinator()
    await world.reconnect()


async def test_steps_reported_but_not_stored_outlive_a_crash() -> None:
    """Killed between receipt and flush; every step is listed once in the end."""
    world = await running_world(3)
    await world.train(2)
    await world.coordinator.flush()
    await world.train(2)
    assert stored_steps(world) == [0, 1, 2]
    await restart(world)
    await world.train()
    await world.coordinator.flush()
    assert stored_steps(world) == [0, 1, 2, 3, 4, 5]
    assert (await world.job()).loss == pytest.approx(1 / 6)


async def test_reports_are_acknowledged_when_they_are_stored_and_not_before() -> None:
    world = await running_world(3)
    await world.train(2)
    assert num_unacknowledged(world) == 9
    world.database.num_failing_commits = 1
    with pytest.raises(PlanariaError):
        await world.coordinator.flush()
    await world.settle()
    assert num_unacknowledged(world) == 9
    await world.coordinator.flush()
    await world.settle()
    assert num_unacknowledged(world) == 0


async def test_a_report_that_is_not_decided_on_is_not_acknowledged() -> None:
    """What it says of a checkpoint is stored by the job's own decision, not by the flush."""
    world = await running_world(3, checkpoint={"path": "runs", "every_steps": 1})
    await world.coordinator.flush()
    await world.settle()
    agent = world.agents["n0"]
    (engine,) = agent.engines.values()
    taken = CheckpointReport(
        job_id=engine.job_id, engine_id=engine.id, version=1, report=CheckpointTaken(layers=(0,))
    )
    async with world.coordinator._state.actors[world.job_id]._storing:
        agent.report(lambda session: session.checkpoint_report(taken))
        await world.coordinator.flush()
        await asyncio.sleep(0)
        assert num_unacknowledged(world) == 1
    await world.settle()
    await world.coordinator.flush()
    await world.settle()
    assert num_unacknowledged(world) == 0


async def test_a_directive_is_not_resolved_before_its_result_is_decided_on() -> None:
    """A coordinator that dies in between sends it again, and waits for no answer in vain."""
    world = await running_world(3)
    await world.add_node("n3", "prepare")
    agent = world.agents["n3"]
    (directive,) = agent.held
    await world.coordinator.flush()  # its steps: nothing is left to be written of the job
    async with world.coordinator._state.actors[world.job_id]._storing:
        agent.release()
        await asyncio.sleep(0)
        await world.coordinator.flush()
        assert directive.id not in world.database.tables.settled
    await world.settle()
    await world.coordinator.flush()
    assert directive.id in world.database.tables.settled


async def test_results_that_come_while_one_is_stored_all_count() -> None:
    """Each is decided on from where the decision before it left the job."""
    world = World()
    await world.start(0)
    for node_id in ("n0", "n1", "n2"):
        await world.add_node(node_id, "prepare")
    await world.submit()
    async with world.database.unit_of_work():  # the first decision waits to be stored
        for agent in world.agents.values():
            agent.release()
            for _ in range(10):
                await asyncio.sleep(0)
        assert world.run.prepared_engines == {}
    await world.settle()
    assert len(world.run.prepared_engines) == 3
    assert (await world.job()).state is JobState.RUNNING


async def test_old_steps_that_are_sent_again_do_not_count_as_the_newest() -> None:
    """More of them than the rate is taken over; each agent repeats what the others have told."""
    world = await running_world(3)
    await world.train(30)
    await restart(world)
    assert (await world.job()).loss == pytest.approx(1 / 31)
    await world.coordinator.flush()
    assert stored_steps(world) == list(range(31))


async def test_with_the_end_of_a_job_all_its_steps_are_stored() -> None:
    """Nobody is left then who could report them again."""
    world = await running_world(3, training={"steps": 4})
    await world.train(4)
    assert (await world.job()).state is JobState.SUCCEEDED
    assert stored_steps(world) == [0, 1, 2, 3]
