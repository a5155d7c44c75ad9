"""A job, and a node that is drained, end when their layers are written, or given up."""

from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.checkpoint_world import (
    FULL,
    LATE,
    announce,
    checkpoint_events,
    checkpointed_world,
    events_of,
    tell,
    write,
    writers,
)
from unit.coordinator.simulation.world import World


async def leaving_writer() -> tuple[World, str, tuple[int, ...]]:
    """A node has left the plan, and has yet to write its layers of step 2."""
    world = await checkpointed_world(resilience={"fault_tolerance": 0})
    await world.train()
    shares = announce(world, 2)
    leaver = next(engine_id for engine_id, layers in shares.items() if layers)
    await write(world, 2, {e: layers for e, layers in shares.items() if e != leaver})
    await world.coordinator.cluster.drain(node_of(leaver))
    await world.settle()
    await world.train(2)
    assert leaver in world.engines()
    assert world.run.transition is None
    return world, leaver, shares[leaver]


async def test_a_drained_node_is_free_when_it_has_written_its_layers() -> None:
    """Nobody else has them any more: a drain costs no checkpoint."""
    world, leaver, layers = await leaving_writer()
    *most, last = layers
    await write(world, 2, {leaver: tuple(most)})
    assert leaver in world.engines()
    await write(world, 2, {leaver: (last,)})
    assert checkpoint_events(world) == [("checkpoint_written", 2)]
    assert leaver not in world.engines()
    await world.advance(1)
    assert (await world.coordinator.cluster.get(node_of(leaver))).state is NodeState.DRAINED


async def test_a_drained_node_whose_disk_hangs_is_free_when_the_version_is_given_up() -> None:
    world, leaver, _ = await leaving_writer()
    tell(world, world.engines()[leaver], 2, LATE)
    await world.settle()
    assert [event.type for event in events_of(world, "checkpoint_")] == [
        "checkpoint_writer_late",
        "checkpoint_failed",
    ]
    assert leaver not in world.engines()


async def test_after_a_crash_at_the_end_the_last_checkpoint_is_written_again() -> None:
    """Engines with copies write them; parked replicas write the rest."""
    world = await checkpointed_world(training={"steps": 2})
    await world.train()
    shares = announce(world, 2)
    await write(world, 2, dict(list(shares.items())[:1]))
    await world.crash_coordinator()
    await world.reconnect()
    await world.settle()
    await write(world, 2, writers(world.run.checkpoints[2]))
    assert (await world.job()).state is JobState.SUCCEEDED
    assert checkpoint_events(world) == [("checkpoint_written", 2)]


async def test_the_job_ends_when_its_last_checkpoint_is_complete() -> None:
    world = await checkpointed_world(training={"steps": 4})
    await world.train(3)
    shares = announce(world, 4)
    await world.settle()
    assert (await world.job()).state is JobState.RUNNING
    assert world.run.final_digest
    await write(world, 4, shares)
    job = await world.job()
    assert job.state is JobState.SUCCEEDED
    assert checkpoint_events(world) == [("checkpoint_written", 4)]


async def test_a_writer_lost_at_the_end_is_replaced() -> None:
    world = await checkpointed_world(training={"steps": 2})
    await world.train()
    announce(world, 2)
    await world.settle()
    await world.kill_node("n1")
    await write(world, 2, writers(world.run.checkpoints[2]))
    assert (await world.job()).state is JobState.SUCCEEDED
    assert checkpoint_events(world) == [("checkpoint_written", 2)]


async def test_a_failed_last_checkpoint_does_not_fail_the_job() -> None:
    world = await checkpointed_world(training={"steps": 2})
    await world.train()
    announce(world, 2)
    tell(world, next(iter(world.engines().values())), 2, FULL)
    await world.settle()
    assert (await world.job()).state is JobState.SUCCEEDED
    assert checkpoint_events(world) == [("checkpoint_failed", 2)]
