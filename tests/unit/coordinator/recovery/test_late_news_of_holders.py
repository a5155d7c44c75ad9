"""A job that waits for unreachable holders hears old news of steps, checkpoints and agents."""

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.application.agents.agent_messages import CheckpointReport
from planaria_coordinator.domain.engines.directive import InitialState
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import Restarted, StepCommitted
from unit.coordinator.recovery.test_unreachable_holders import (
    PAIRS,
    bring_back,
    lose,
    waiting_world,
)
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.checkpoint_world import announce, tell, write, written
from unit.coordinator.simulation.world import World, running_world

CHECKPOINT = {"path": "runs", "every_steps": 2}
INITIAL_STATE = InitialState(path="runs/step-00000002", step=2, sha256="ab", num_tokens=2)


def within(seconds: float) -> dict[str, object]:
    return {"fault_tolerance": 1, "unreachable_timeout_seconds": seconds}


async def add_two(world: World, refusal: Failure | None = None) -> None:
    """Add nodes that the job can go back to its checkpoint with."""
    for node_id in ("n8", "n9"):
        await world.add_node(node_id)
    for agent in world.agents.values():
        agent.initial_state, agent.refusal = INITIAL_STATE, refusal


async def test_a_step_that_holders_took_part_in_shows_nothing_of_them() -> None:
    """Its report was held back until the fence: they are waited for all the same."""
    world = await running_world(resources=PAIRS)
    await world.train(2)
    assert world.run.placement is not None
    record = world._record(world.run.committed_steps, world.run.placement.generation, 0)
    world.hold("quiesce", "n2", "n3")
    away = [await lose(world, "n0"), await lose(world, "n1")]
    await world.advance(4)
    late = StepCommitted(record=record, commit_time=world.clock.now(), step_seconds=1.0)
    world.coordinator._state.actors[world.job_id].post(late)
    await world.release()
    await world.advance(1)
    assert (await world.job()).state is JobState.WAITING
    await bring_back(world, *away)
    assert (await world.job()).state is JobState.RUNNING


async def test_who_was_back_before_the_coordinator_began_again_is_heard_of_again() -> None:
    """Its session stayed open, so that no Hello tells of it."""
    world = await running_world(resources=PAIRS)
    world.hold("quiesce", "n2", "n3")
    away = [await lose(world, "n0"), await lose(world, "n1")]
    await world.advance(4)
    await bring_back(world, away[0])
    world.coordinator._state.actors[world.job_id].post(Restarted())
    await world.release()
    await world.advance(5)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_restored_job_takes_no_layer_of_what_it_went_back_behind() -> None:
    """In fast mode a checkpoint would have the bits of two histories."""
    world, away = await waiting_world(checkpoint=CHECKPOINT, resilience=within(60))
    await add_two(world)
    void = CheckpointReport(
        job_id=world.job_id, engine_id=next(iter(away[0].engines)), version=4, report=written(0)
    )
    away[0].report(lambda session: session.checkpoint_report(void))
    await world.advance(70)
    await bring_back(world, *away)
    await world.train(2)
    for engine_id, layers in announce(world, 4).items():
        for layer in layers:
            if layer != 0:
                tell(world, world.engines()[engine_id], 4, written(layer))
    await world.settle()
    assert (await world.job()).state is JobState.RUNNING
    assert world.run.newest_checkpoint_steps == 2


async def test_a_restored_job_waits_for_the_storage_of_its_checkpoint() -> None:
    """It has trained: what it cannot read now, it has written itself."""
    world, _ = await waiting_world(checkpoint=CHECKPOINT, resilience=within(60))
    stale = Failure(reason=ErrorReason.INIT_UNUSABLE, message="stale file handle", metadata={})
    await add_two(world, stale)
    await world.advance(70)
    job = await world.job()
    assert (job.state, job.error) == (JobState.PENDING, None)
    for agent in world.agents.values():
        agent.refusal = None
    await world.advance(120)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_checkpoint_that_is_sealed_after_the_timeout_is_taken() -> None:
    world = await running_world(resources=PAIRS, checkpoint=CHECKPOINT, resilience=within(10))
    await world.train(2)
    world.hold("seal_checkpoint", *world.agents)
    await write(world, 2, announce(world, 2))
    sealer = world.run.checkpoints[2].sealer
    await world.train(1)
    pairs = (("n0", "n1"), ("n2", "n3"))
    for node_id in next(pair for pair in pairs if not any(f"/{n}/" in sealer for n in pair)):
        await lose(world, node_id)
    await world.advance(27)
    assert (await world.job()).state is JobState.WAITING
    await world.release()
    await world.advance(2)
    assert "job_restored" in world.event_types()


@pytest.mark.parametrize("session_ends", [False, True])
async def test_a_holder_that_is_cut_off_again_before_it_was_asked_is_not_gone(
    session_ends: bool,
) -> None:
    """It was back, and waited for a fence; the job lost no process."""
    world = await running_world(
        2, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 0}
    )
    await world.train(3)
    agent = world.agents["n1"]
    world.hold("quiesce", "n0")
    agent.is_silent = True
    await world.advance(4)
    await _return(world, agent)
    agent.is_silent = True
    if session_ends:
        agent.disconnect()
    await world.advance(4)
    await world.release()
    await world.advance(1)
    assert (await world.job()).state is JobState.WAITING
    await _return(world, agent)
    await world.advance(3)
    await world.train(1)
    assert (await world.job()).state is JobState.RUNNING


async def _return(world: World, agent: SimAgent) -> None:
    agent.is_silent, agent.session = False, None
    await agent.connect()
    await world.settle()
    agent.beat()
    await world.settle()
