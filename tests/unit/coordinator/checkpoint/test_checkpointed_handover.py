"""A checkpoint is due at the very commit that hands over the plan."""

from collections.abc import Callable

import pytest

from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.outcome import CheckpointTaken
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.checkpoint.test_late_writers import outcomes
from unit.coordinator.simulation.checkpoint_world import (
    LATE,
    announce,
    checkpointed_world,
    parts,
    tell,
    write,
    writers,
    written,
)
from unit.coordinator.simulation.engine import SimEngine
from unit.coordinator.simulation.world import World

Shares = dict[str, tuple[int, ...]]
Say = Callable[[World, SimEngine, tuple[int, ...]], None]


async def switching(change: str) -> World:
    """At step 1; everybody has been asked to change over at the commit of step 2."""
    world = await checkpointed_world(resilience={"fault_tolerance": 0})
    if change == "join":
        await join_in_a_pair(world)
    else:
        await world.coordinator.cluster.drain("n1")
        await world.settle()
    assert world.phase is Phase.SWITCHING
    assert (await world.job()).step == 1
    return world


async def join_in_a_pair(world: World) -> None:
    for node_id in ("n8", "n9"):
        await world.add_node(node_id, "prepare")
    await world.release()


def say_taken(world: World, engine: SimEngine, layers: tuple[int, ...]) -> None:
    tell(world, engine, 2, CheckpointTaken(layers=layers))


def say_written(world: World, engine: SimEngine, layers: tuple[int, ...]) -> None:
    say_taken(world, engine, layers)
    for layer in layers:
        tell(world, engine, 2, written(layer))


async def change_over(world: World, say: Say) -> Shares:
    """Commit step 2 and change over; the owners of the plan before have said their part first."""
    shares = parts(world)

    def on_commit(engine: SimEngine) -> None:
        say(world, engine, shares.get(engine.id, ()))

    world.on_commit = on_commit
    await world.train()
    world.on_commit = lambda _engine: None
    return shares


async def assert_it_goes_on(world: World, change: str) -> None:
    assert world.run.transition is None
    assert world.recoveries[-1].idle_seconds == 0.0
    assert len(world.members()) == (6 if change == "join" else 3)
    while (await world.job()).step < 4:
        await world.train()
    await write(world, 4, announce(world, 4))
    assert outcomes(world)[-1] == ("checkpoint_written", 4)
    assert (await world.job()).state is JobState.RUNNING


@pytest.mark.parametrize("change", ["join", "drain"])
async def test_files_that_are_written_before_the_change_is_made(change: str) -> None:
    world = await switching(change)
    await change_over(world, say_written)
    assert outcomes(world) == [("checkpoint_written", 2)]
    await assert_it_goes_on(world, change)


async def test_files_that_are_written_in_the_next_generation() -> None:
    """They are of the plan before, by engines that have other places now."""
    world = await switching("join")
    shares = await change_over(world, say_taken)
    assert outcomes(world) == []
    await write(world, 2, shares)
    assert outcomes(world) == [("checkpoint_written", 2)]
    await assert_it_goes_on(world, "join")


async def test_an_engine_that_leaves_at_the_commit_writes_its_layers_first() -> None:
    world = await switching("drain")
    shares = await change_over(world, say_taken)
    await write(world, 2, shares)
    assert outcomes(world) == [("checkpoint_written", 2)]
    assert not world.agents["n1"].engines
    await assert_it_goes_on(world, "drain")


async def test_an_engine_that_leaves_writes_its_layers_first_even_if_the_coordinator_dies() -> None:
    """Guard: what is known of writers outlives a restart; its copies are nowhere else."""
    world = await switching("drain")
    shares = await change_over(world, say_taken)
    await world.crash_coordinator()
    await world.reconnect()
    assert world.agents["n1"].engines
    await write(world, 2, shares)
    assert outcomes(world) == [("checkpoint_written", 2)]
    assert not world.agents["n1"].engines
    await assert_it_goes_on(world, "drain")


async def test_a_disk_that_hangs_at_that_commit() -> None:
    """Replicas in the plan before write, before or after they have changed over."""
    world = await switching("join")
    late = next(iter(world.engines()))

    def say(world: World, engine: SimEngine, layers: tuple[int, ...]) -> None:
        say_taken(world, engine, layers)
        if engine.id == late:
            tell(world, engine, 2, LATE)

    await change_over(world, say)
    part = writers(world.run.checkpoints[2])
    assert late not in part
    await write(world, 2, part)
    assert outcomes(world) == [("checkpoint_written", 2)]
    await assert_it_goes_on(world, "join")


async def test_a_writer_that_dies_while_the_plan_is_handed_over() -> None:
    """The fence finds the survivors at that commit, whatever their places, and fills the gap."""
    world = await switching("join")
    joiner = world.agents["n9"]
    joiner.is_silent = True
    shares = await change_over(world, say_taken)
    assert world.phase is Phase.SWITCHING
    victim = next(e for e, layers in shares.items() if layers)
    joiner.is_silent = False
    joiner.disconnect()
    await joiner.connect()
    await world.kill_node(node_of(victim))
    part = writers(world.run.checkpoints[2])
    assert victim not in part
    await write(world, 2, part)
    assert outcomes(world) == [("checkpoint_written", 2)]
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING


async def test_staging_does_not_wait_for_checkpoint_copies() -> None:
    """Staging runs in parallel: engines that copy get no more time than others."""
    world = await checkpointed_world(resilience={"fault_tolerance": 0})
    await world.train()
    shares = announce(world, 2)
    done = world.members()[0].id
    await write(world, 2, {done: shares[done]})
    world.hold("stage_plan")
    await world.coordinator.cluster.drain("n1")
    await world.settle()
    assert world.phase is Phase.STAGING
    waited = {p.allowed_seconds for p in world.run.pending.values() if p.kind == "stage_plan"}
    assert len(waited) == 1, waited
