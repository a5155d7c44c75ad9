"""Checkpoints cost no step and no engine, and only whole ones are ever sealed."""

from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import Limits
from unit.coordinator.simulation.agent import NUM_LAYERS
from unit.coordinator.simulation.checkpoint_world import (
    FULL,
    announce,
    checkpoint_events,
    checkpointed_world,
    events_of,
    tell,
    write,
    writers,
)


async def test_a_checkpoint_is_sealed_when_all_layers_are_written() -> None:
    world = await checkpointed_world()
    await world.train()
    shares = announce(world, 2)
    *most, last = [(engine_id, layer) for engine_id, part in shares.items() for layer in part]
    for engine_id, layer in most:
        await write(world, 2, {engine_id: (layer,)})
    assert world.run.checkpoints[2].sealer == ""
    await write(world, 2, {last[0]: (last[1],)})
    assert checkpoint_events(world) == [("checkpoint_written", 2)]
    assert world.run.newest_checkpoint == "runs/step-00000002"
    assert world.run.checkpoints == {}


async def test_a_full_disk_is_reported_and_training_continues() -> None:
    world = await checkpointed_world()
    await world.train()
    shares = announce(world, 2)
    tell(world, next(iter(world.engines().values())), 2, FULL)
    await write(world, 2, shares)  # whatever others write of it comes to nothing
    await world.train(2)
    await write(world, 4, announce(world, 4))
    assert checkpoint_events(world) == [("checkpoint_failed", 2), ("checkpoint_written", 4)]
    assert "disk full" in events_of(world, "checkpoint_failed")[0].message
    assert (await world.job()).state is JobState.RUNNING


async def test_a_dead_writers_layers_are_written_by_replicas_that_still_have_them() -> None:
    """n1 dies after the commit of step 2: the survivors stand there."""
    world = await checkpointed_world()
    await world.train()
    shares = announce(world, 2)
    await world.kill_node("n1")
    await write(world, 2, shares)
    retaken = world.run.checkpoints[2].missing(NUM_LAYERS, world.run.engines.keys())
    assert retaken == ()
    await write(world, 2, writers(world.run.checkpoints[2]))
    assert checkpoint_events(world) == [("checkpoint_written", 2)]
    await world.train()


async def test_an_engine_that_copies_for_a_checkpoint_may_activate_late() -> None:
    """n1 dies after the commit of step 2. An engine without layers to write is not waited for."""
    world = await checkpointed_world()
    await world.train()
    shares = announce(world, 2)
    late, silent = [e for e in world.members() if node_of(e.id) != "n1"][:2]
    await write(world, 2, {silent.id: shares[silent.id]})
    for engine in (late, silent):
        world.agents[node_of(engine.id)].held_kinds.add("activate")
    await world.kill_node("n1")
    await world.advance(4 * Limits().directive_seconds)
    lost = {event.details["engine_id"] for event in events_of(world, "engine_lost")}
    assert silent.id in lost
    assert late.id not in lost


async def test_a_version_that_no_engine_holds_is_given_up_and_the_next_one_is_written() -> None:
    world = await checkpointed_world()
    await world.train()
    announce(world, 2)
    await world.train()  # step 3: nobody has version 2
    await world.kill_node("n1")
    assert checkpoint_events(world) == [("checkpoint_incomplete", 2)]
    await world.train()
    await write(world, 4, announce(world, 4))
    assert checkpoint_events(world)[-1] == ("checkpoint_written", 4)


async def test_another_engine_seals_when_the_first_one_dies() -> None:
    world = await checkpointed_world()
    await world.train()
    world.hold("seal_checkpoint")
    await write(world, 2, announce(world, 2))
    first = world.run.checkpoints[2].sealer
    for agent in world.agents.values():
        agent.held_kinds.clear()
    await world.kill_node(node_of(first))
    assert checkpoint_events(world) == [("checkpoint_written", 2)]


async def test_the_coordinator_may_crash_between_the_layers_and_the_seal() -> None:
    world = await checkpointed_world()
    await world.train()
    world.hold("seal_checkpoint")
    await write(world, 2, announce(world, 2))
    await world.crash_coordinator()
    for agent in world.agents.values():
        agent.held_kinds.clear()
    await world.reconnect()
    assert checkpoint_events(world) == [("checkpoint_written", 2)]
