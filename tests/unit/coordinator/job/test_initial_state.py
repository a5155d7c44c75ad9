"""A job begins at its base, and what was lost is told with the way to go on."""

from dataclasses import replace
from typing import Any

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import InitialState
from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.checkpoint_world import (
    IN_PAIRS,
    checkpointed_world,
    events_of,
)
from unit.coordinator.simulation.world import World

BASE = InitialState(path="runs/step-00000050", step=50, sha256="ab", num_tokens=50 * 128)


async def world_from(initial_state: InitialState, **changes: Any) -> World:
    world = World()
    await world.start(4)
    for agent in world.agents.values():
        agent.initial_state = initial_state
    await world.submit(init_from="runs", resources=IN_PAIRS, **changes)
    return world


async def test_a_job_begins_at_the_step_of_its_initial_state() -> None:
    world = await world_from(BASE)
    assert (await world.job()).step == 50
    started = events_of(world, "job_started")[0]
    assert started.message.startswith("training begins from runs/step-00000050 at step 50")
    await world.train(2)
    assert (await world.job()).step == 52


async def test_before_the_first_commit_the_initial_state_cannot_be_lost() -> None:
    """Both nodes with layer 0 die in the first step: it is loaded again."""
    world = await world_from(BASE)
    first = [engine.id for engine in world.engines().values() if 0 in engine.layers]
    assert len(first) == 2
    for engine_id in first:
        await world.kill_node(node_of(engine_id))
    await world.train(2)
    job = await world.job()
    assert (job.state, job.step) == (JobState.RUNNING, 52)


async def test_fresh_engines_alone_never_begin_a_job_again() -> None:
    """All who had state die at once while a newcomer is prepared: nothing is lost silently [11]."""
    world = await checkpointed_world()
    await world.train(4)
    newcomer = await world.add_node("n9")
    await world.settle()
    for agent in world.agents.values():
        if agent is not newcomer:
            for engine_id in list(agent.engines):
                agent.lose_engine(engine_id)
    await world.settle()
    job = await world.job()
    assert job.error is not None
    assert job.error.reason is ErrorReason.STATE_LOST
    assert "is gone at step 5" in job.error.message


async def test_a_joiner_gets_the_initial_state_and_one_with_another_is_refused() -> None:
    world = await world_from(BASE)
    await world.train()
    other = await world.add_node("n9")
    other.initial_state = replace(BASE, sha256="cd")
    await world.train(3)
    assert all(engine.committed_steps > 50 for engine in other.engines.values())


async def test_a_node_that_sees_another_initial_state_is_done_without() -> None:
    world = World()
    await world.start(4)
    for agent in world.agents.values():
        agent.initial_state = BASE
    world.agents["n2"].initial_state = replace(BASE, sha256="cd")
    await world.submit(init_from="runs")
    assert (await world.job()).state is JobState.RUNNING
    assert "n2 sees other contents at runs (init_from)" in world.run.refused["n2"]
