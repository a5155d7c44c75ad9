"""A disk that hangs costs what nobody else has, and never anybody's time."""

from typing import Any

from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.outcome import CheckpointTaken
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.simulation.checkpoint_world import (
    FULL,
    LATE,
    announce,
    checkpointed_world,
    events_of,
    parts,
    tell,
    write,
    writers,
    written,
)
from unit.coordinator.simulation.world import World, running_world


def give_back(world: World, engine_id: str, version: int) -> None:
    tell(world, world.engines()[engine_id], version, LATE)


async def world_at_two(**changes: Any) -> tuple[World, dict[str, tuple[int, ...]], str]:
    """Step 2 is committed, all have said what they write of it, and one of them is late."""
    world = await checkpointed_world(**changes)
    await world.train()
    shares = announce(world, 2)
    late = next(engine_id for engine_id, layers in shares.items() if layers)
    give_back(world, late, 2)
    await world.settle()
    return world, {e: layers for e, layers in shares.items() if e != late}, late


def outcomes(world: World) -> list[tuple[str, int]]:
    """What became of versions."""
    events = events_of(world, "checkpoint_")
    return [(e.type, e.details["step"]) for e in events if e.type != "checkpoint_writer_late"]


async def test_replicas_write_what_an_engine_gives_back() -> None:
    world, _, late = await world_at_two()
    part = writers(world.run.checkpoints[2])
    assert late not in part
    assert sorted(layer for layers in part.values() for layer in layers) == list(range(6))
    await world.train()  # they have copies
    await write(world, 2, part)
    assert outcomes(world) == [("checkpoint_written", 2)]


async def test_reports_of_a_late_engine_are_repeated() -> None:
    """Its agent was killed: replicas write by now, and no longer have the layers."""
    world, shares, late = await world_at_two()
    others = {layer for layers in shares.values() for layer in layers}
    mine = tuple(layer for layer in range(6) if layer not in others)
    part = writers(world.run.checkpoints[2])
    await world.train()
    tell(world, world.engines()[late], 2, CheckpointTaken(layers=mine))
    give_back(world, late, 2)
    await world.settle()
    assert writers(world.run.checkpoints[2]) == part
    await write(world, 2, part)
    assert outcomes(world) == [("checkpoint_written", 2)]


async def test_layers_that_a_fence_has_given_to_others_stay_with_them() -> None:
    """What an engine had taken is heard too late."""
    world = await checkpointed_world()
    await world.train()
    shares = parts(world)
    (silent, mine), *others = shares.items()
    for engine_id, layers in others:
        tell(world, world.engines()[engine_id], 2, CheckpointTaken(layers=layers))
    await world.kill_node(node_of(others[-1][0]))
    part = writers(world.run.checkpoints[2])
    assert not set(mine) <= set(part[silent])
    tell(world, world.engines()[silent], 2, CheckpointTaken(layers=mine))
    await world.settle()
    assert writers(world.run.checkpoints[2]) == part


async def test_a_late_writer_is_reported_once_until_it_is_back() -> None:
    world, _, late = await world_at_two()
    await world.train(2)
    announce(world, 4)
    give_back(world, late, 4)
    await world.settle()
    (event,) = events_of(world, "checkpoint_writer_late")
    assert late in event.message
    assert "the disk hangs" in event.message
    assert world.run.late_writers == (late,)
    tell(world, world.engines()[late], 2, written(0))
    await world.settle()
    assert not world.run.late_writers


async def test_a_version_no_replica_holds_is_given_up_at_once() -> None:
    """The hung version itself: they are steps ahead when its writer speaks up."""
    world = await checkpointed_world()
    await world.train()
    shares = announce(world, 2)
    await world.train()
    late = next(engine_id for engine_id, layers in shares.items() if layers)
    give_back(world, late, 2)
    await world.settle()
    (event,) = events_of(world, "checkpoint_failed")
    assert "there is no checkpoint of step 2: layer-0000 is not written" in event.message
    assert world.run.checkpoints == {}


async def test_a_replica_that_has_just_moved_on() -> None:
    """The event says what began it."""
    world = await checkpointed_world()
    await world.train()
    world.hold("write_checkpoint")
    shares = announce(world, 2)
    give_back(world, next(e for e, layers in shares.items() if layers), 2)
    await world.train()
    await world.release()
    (event,) = events_of(world, "checkpoint_failed")
    assert "the disk hangs; not held any more" in event.message


async def test_when_all_disks_hang_the_version_is_dropped_without_further_requests() -> None:
    world, shares, _ = await world_at_two()
    for engine_id in shares:
        give_back(world, engine_id, 2)
    await world.settle()
    assert outcomes(world) == [("checkpoint_failed", 2)]
    assert world.run.checkpoints == {}
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_late_engine_does_not_fill_gaps() -> None:
    """Its partner dies: nobody but the late one has some layers, so the version is given up."""
    world, _, late = await world_at_two()
    partner = next(
        e
        for e, layers in writers(world.run.checkpoints[2]).items()
        if set(layers) & set(world.engines()[late].layers)
    )
    await world.kill_node(node_of(partner))
    assert outcomes(world) == [("checkpoint_failed", 2)]
    await world.train(2)


async def test_a_late_engine_does_not_seal() -> None:
    world, shares, late = await world_at_two()
    world.hold("seal_checkpoint")
    await write(world, 2, shares)
    await write(world, 2, writers(world.run.checkpoints[2]))
    sealers = [world.run.checkpoints[2].sealer]
    while 2 in world.run.checkpoints:
        sealers.append(world.run.checkpoints[2].sealer)
        await world.advance(100, tick_seconds=10)
    assert len(set(sealers)) == 3
    assert late not in sealers


async def test_the_end_of_a_job_does_not_wait_for_a_disk_that_hangs() -> None:
    """All stand at the last version: replicas write it as soon as the writer gives it back."""
    world, shares, _ = await world_at_two(training={"steps": 2})
    assert world.phase is Phase.CHECKPOINTING
    await write(world, 2, shares)
    await write(world, 2, writers(world.run.checkpoints[2]))
    assert (await world.job()).state is JobState.SUCCEEDED
    assert outcomes(world) == [("checkpoint_written", 2)]


async def test_layers_given_back_during_a_fence_are_reassigned() -> None:
    """One dies; who is late says so before it answers the fence, and others fill both gaps.

    Guard: what it had taken is said once more, while nobody writes that yet.
    """
    world = await checkpointed_world(resilience={"fault_tolerance": 0})
    await world.train()
    shares = announce(world, 2)
    victim, *others = [e for e, layers in shares.items() if layers]
    held = set(world.engines()[victim].layers)
    late = next(e for e in others if held.isdisjoint(world.engines()[e].layers))
    world.hold("quiesce")
    await world.kill_node(node_of(victim))
    give_back(world, late, 2)
    await world.settle()
    tell(world, world.engines()[late], 2, CheckpointTaken(layers=shares[late]))
    await world.settle()
    assert 2 in world.run.checkpoints
    await world.release()
    part = writers(world.run.checkpoints[2])
    assert late not in part
    await write(world, 2, part)
    assert outcomes(world) == [("checkpoint_written", 2)]
    await world.train(2)


async def test_an_engine_without_a_next_assignment_writes_too() -> None:
    """It was not told of the generation that is being made ready, and must not hear of it so."""
    world = await checkpointed_world(resilience={"fault_tolerance": 0})
    world.hold("stage_plan")
    await world.coordinator.cluster.drain("n0")
    await world.settle()
    assert world.phase is Phase.STAGING
    leaver = world.engine_on("n0")
    await world.train()
    shares = announce(world, 2)
    partner = next(
        e for e, layers in shares.items() if e != leaver.id and set(layers) & set(leaver.layers)
    )
    give_back(world, partner, 2)
    await world.settle()
    await write(world, 2, writers(world.run.checkpoints[2]))
    assert outcomes(world) == [("checkpoint_written", 2)]
    assert leaver.generation == leaver.active_generation
    for agent in world.agents.values():
        agent.release()
    await world.train(3)
    assert (await world.job()).step == 5


async def test_a_silent_end_waits_for_the_deadline_of_the_job_file() -> None:
    """Every message is lost: not even then does the job's end wait for long."""
    checkpoint = {"path": "runs", "every_steps": 2, "deadline_seconds": 5}
    world = await running_world(
        checkpoint=checkpoint, resources={"min_nodes_per_pipeline": 2}, training={"steps": 2}
    )
    await world.train()
    announce(world, 2)
    await world.settle()
    assert (await world.job()).state is JobState.RUNNING
    await world.advance(25)
    assert (await world.job()).state is JobState.SUCCEEDED
    assert outcomes(world) == [("checkpoint_incomplete", 2)]


async def test_a_version_queued_after_others_is_not_given_up() -> None:
    """A disk is slow with step 2: the files of the last step have their time when it gets there."""
    checkpoint = {"path": "runs", "every_steps": 2, "deadline_seconds": 5}
    world = await running_world(
        checkpoint=checkpoint, resources={"min_nodes_per_pipeline": 2}, training={"steps": 4}
    )
    await world.train()
    first = announce(world, 2)
    slow = next(engine_id for engine_id, layers in first.items() if layers)
    await world.train(2)
    last = announce(world, 4)
    await write(world, 4, {e: layers for e, layers in last.items() if e != slow})
    for layer in first[slow]:
        await world.advance(10)
        await write(world, 2, {slow: (layer,)})
    await world.advance(10)
    assert 4 in world.run.checkpoints
    await write(world, 4, {slow: last[slow]})
    assert ("checkpoint_written", 4) in outcomes(world)
    assert (await world.job()).state is JobState.SUCCEEDED


async def test_a_full_disk_is_not_tried_by_every_engine() -> None:
    """All write to the same storage."""
    world, shares, _ = await world_at_two()
    tell(world, world.engines()[next(iter(shares))], 2, FULL)
    await world.settle()
    assert outcomes(world) == [("checkpoint_failed", 2)]
