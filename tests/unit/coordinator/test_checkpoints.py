"""Checkpoints cost no step and no engine, and only whole ones are ever sealed."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria_common.errors import ErrorReason
from planaria_coordinator.application.agents import CheckpointReport
from planaria_coordinator.domain.actions import Emit, Send
from planaria_coordinator.domain.checkpoint import Checkpoint
from planaria_coordinator.domain.directive import (
    Base,
    CheckpointTaken,
    Directive,
    Failure,
    LayerWritten,
    SealCheckpoint,
)
from planaria_coordinator.domain.event import Event
from planaria_coordinator.domain.job import JobState
from planaria_coordinator.domain.node import NodeState
from planaria_coordinator.domain.run import JobRun, Limits, Moment, node_of
from planaria_coordinator.domain.signals import CheckpointReported, Restarted, Signal, Tick
from planaria_coordinator.domain.transition import Decision, decide
from unit.coordinator.sim_agent import NUM_LAYERS
from unit.coordinator.sim_engine import SimEngine
from unit.coordinator.simulation import World, running_world

ALL = tuple(range(NUM_LAYERS))
IN_PAIRS = {"min_nodes_per_pipeline": 2}
LATE = Failure(reason=ErrorReason.UNAVAILABLE, message="layer-0000 is not written: the disk hangs")
FULL = Failure(reason=ErrorReason.CHECKPOINT_FAILED, message="cannot write: disk full")


async def checkpointed_world(**changes: Any) -> World:
    """Four nodes in two pipelines, at step 1; every second step is written."""
    checkpoint = {"path": "runs", "every_steps": 2}
    return await running_world(checkpoint=checkpoint, resources=IN_PAIRS, **changes)


def tell(world: World, engine: SimEngine, version: int, report: Any) -> None:
    agent = next(a for a in world.agents.values() if engine.id in a.engines)
    message = CheckpointReport(
        job_id=engine.job_id, engine_id=engine.id, version=version, report=report
    )
    agent.report(lambda session: session.checkpoint_report(message))


def written(layer: int) -> LayerWritten:
    return LayerWritten(layer=layer, num_bytes=10, sha256=f"{layer:064x}")


def parts(world: World) -> dict[str, tuple[int, ...]]:
    """Each layer to one of the engines that hold it, in turn."""
    engines = sorted(world.engines().values(), key=lambda engine: engine.id)
    shares: dict[str, tuple[int, ...]] = {engine.id: () for engine in engines}
    for layer in ALL:
        holders = [engine for engine in engines if layer in engine.layers]
        if holders:
            chosen = holders[layer % len(holders)].id
            shares[chosen] = (*shares[chosen], layer)
    return shares


def announce(world: World, version: int) -> dict[str, tuple[int, ...]]:
    shares = parts(world)
    for engine_id, layers in shares.items():
        tell(world, world.engines()[engine_id], version, CheckpointTaken(layers=layers))
    return shares


async def write(world: World, version: int, shares: dict[str, tuple[int, ...]]) -> None:
    for engine_id, layers in shares.items():
        engine = world.engines().get(engine_id)
        for layer in layers if engine is not None else ():
            assert engine is not None
            tell(world, engine, version, written(layer))
    await world.settle()


def checkpoint_events(world: World) -> list[tuple[str, int]]:
    return [(e.type, e.details["step"]) for e in events_of(world, "checkpoint_")]


def events_of(world: World, prefix: str) -> list[Event]:
    return [event for event in world.events if event.type.startswith(prefix)]


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
    await world.stop()


async def test_a_full_disk_is_told_and_training_goes_on() -> None:
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
    await world.stop()


async def test_a_dead_writers_layers_are_written_by_replicas_that_still_have_them() -> None:
    """n1 dies behind the commit of step 2: the survivors stand there."""
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
    await world.stop()


def writers(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    shares: dict[str, tuple[int, ...]] = {}
    for layer, engine_id in checkpoint.writers.items():
        if layer not in checkpoint.written:
            shares[engine_id] = (*shares.get(engine_id, ()), layer)
    return shares


async def test_what_nobody_has_any_more_is_given_up_and_the_next_one_comes() -> None:
    world = await checkpointed_world()
    await world.train()
    announce(world, 2)
    await world.train()  # step 3: nobody has version 2
    await world.kill_node("n1")
    assert checkpoint_events(world) == [("checkpoint_incomplete", 2)]
    await world.train()
    await write(world, 4, announce(world, 4))
    assert checkpoint_events(world)[-1] == ("checkpoint_written", 4)
    await world.stop()


async def test_another_engine_seals_when_the_first_one_dies() -> None:
    world = await checkpointed_world()
    await world.train()
    for agent in world.agents.values():
        agent.held_kinds.add("seal_checkpoint")
    await write(world, 2, announce(world, 2))
    first = world.run.checkpoints[2].sealer
    for agent in world.agents.values():
        agent.held_kinds.clear()
    await world.kill_node(node_of(first))
    assert checkpoint_events(world) == [("checkpoint_written", 2)]
    await world.stop()


async def test_the_coordinator_may_crash_between_the_layers_and_the_seal() -> None:
    world = await checkpointed_world()
    await world.train()
    for agent in world.agents.values():
        agent.held_kinds.add("seal_checkpoint")
    await write(world, 2, announce(world, 2))
    await world.crash_coordinator()
    for agent in world.agents.values():
        agent.held_kinds.clear()
    await world.reconnect()
    assert checkpoint_events(world) == [("checkpoint_written", 2)]
    await world.stop()


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
    await world.stop()


async def test_a_drained_node_whose_disk_hangs_is_free_when_the_version_is_given_up() -> None:
    world, leaver, _ = await leaving_writer()
    tell(world, world.engines()[leaver], 2, LATE)
    await world.settle()
    assert [event.type for event in events_of(world, "checkpoint_")] == [
        "checkpoint_writer_late",
        "checkpoint_failed",
    ]
    assert leaver not in world.engines()
    await world.stop()


async def test_after_a_crash_at_the_end_the_last_checkpoint_is_written_again() -> None:
    """What engines said meanwhile is lost: replicas that stand still write what is not known."""
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
    await world.stop()


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
    await world.stop()


async def test_a_writer_lost_at_the_end_is_replaced() -> None:
    world = await checkpointed_world(training={"steps": 2})
    await world.train()
    announce(world, 2)
    await world.settle()
    await world.kill_node("n1")
    await write(world, 2, writers(world.run.checkpoints[2]))
    assert (await world.job()).state is JobState.SUCCEEDED
    assert checkpoint_events(world) == [("checkpoint_written", 2)]
    await world.stop()


async def test_a_failed_last_checkpoint_does_not_fail_the_job() -> None:
    world = await checkpointed_world(training={"steps": 2})
    await world.train()
    announce(world, 2)
    tell(world, next(iter(world.engines().values())), 2, FULL)
    await world.settle()
    assert (await world.job()).state is JobState.SUCCEEDED
    assert checkpoint_events(world) == [("checkpoint_failed", 2)]
    await world.stop()


# -- bases -----------------------------------------------------------------------------------------

BASE = Base(path="runs/step-00000050", step=50, sha256="ab", num_tokens=50 * 128)


async def world_from(base: Base, **changes: Any) -> World:
    world = World()
    await world.start(4)
    for agent in world.agents.values():
        agent.base = base
    await world.submit(init_from="runs", resources=IN_PAIRS, **changes)
    return world


async def test_a_job_begins_at_the_step_of_its_base() -> None:
    world = await world_from(BASE)
    assert (await world.job()).step == 50
    started = events_of(world, "job_started")[0]
    assert started.message.startswith("training begins from runs/step-00000050 at step 50")
    await world.train(2)
    assert (await world.job()).step == 52
    await world.stop()


async def test_before_the_first_commit_nothing_of_a_base_can_be_lost() -> None:
    """Both nodes with layer 0 die in the first step: it is loaded again."""
    world = await world_from(BASE)
    first = [engine.id for engine in world.engines().values() if 0 in engine.layers]
    assert len(first) == 2
    for engine_id in first:
        await world.kill_node(node_of(engine_id))
    await world.train(2)
    job = await world.job()
    assert (job.state, job.step) == (JobState.RUNNING, 52)
    await world.stop()


async def test_lost_state_is_told_with_the_way_to_go_on() -> None:
    world = await world_from(BASE, checkpoint={"path": "runs", "every_steps": 2})
    await world.train(2)
    await write(world, 52, announce(world, 52))
    await world.train(2)
    first = [engine.id for engine in world.engines().values() if 0 in engine.layers]
    for engine_id in first:
        await world.kill_node(node_of(engine_id))
    job = await world.job()
    assert job.error is not None
    assert job.error.reason is ErrorReason.STATE_LOST
    assert "runs/step-00000052" in job.error.message
    assert f"`planaria submit --resume {world.job_id}`" in job.error.message
    await world.stop()


async def test_fresh_engines_alone_never_begin_a_job_again() -> None:
    """All who had state die at once while a newcomer is prepared: nothing is lost silently [10]."""
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
    await world.stop()


async def test_a_newcomer_is_told_the_base_and_one_that_sees_another_is_refused() -> None:
    world = await world_from(BASE)
    await world.train()
    other = await world.add_node("n9")
    other.base = replace(BASE, sha256="cd")
    await world.train(3)
    assert all(engine.committed_steps > 50 for engine in other.engines.values())
    await world.stop()


async def test_nodes_that_see_different_bases_are_named() -> None:
    world = World()
    await world.start(4)
    for agent in world.agents.values():
        agent.base = BASE
    world.agents["n2"].base = replace(BASE, sha256="cd")
    await world.submit(init_from="runs")
    job = await world.job()
    assert job.error is not None
    assert job.error.reason is ErrorReason.INIT_MISMATCH
    assert "n2 sees other contents at runs (init_from)" in job.error.message
    await world.stop()


# -- any order -------------------------------------------------------------------------------------


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What engines may say of two versions, in any order and as often as they like."""
    words = st.tuples(
        st.sampled_from(["taken", "written", "written", "written"]), st.sampled_from(ALL)
    )
    story = draw(st.lists(words, min_size=10, max_size=60))
    for _ in range(draw(st.integers(0, 1))):
        story.insert(draw(st.integers(0, len(story))), ("failed", 0))
    return story


@pytest.fixture(scope="module")
def run() -> JobRun:
    """A job that trains, seen once."""

    async def trained() -> JobRun:
        world = await checkpointed_world()
        run = world.run
        await world.stop()
        return run

    return asyncio.run(trained())


def decided(run: JobRun, signal: Signal, *, seconds: float = 0.0) -> Decision:
    return decide(Moment(seconds=seconds, time=run.create_time), run, signal, Limits())


def seals(decision: Decision) -> list[Directive]:
    sent = [action.directive for action in decision.actions if isinstance(action, Send)]
    return [directive for directive in sent if isinstance(directive.command, SealCheckpoint)]


def told(decision: Decision) -> list[str]:
    return [action.event.type for action in decision.actions if isinstance(action, Emit)]


Report = CheckpointTaken | LayerWritten | Failure


def said(run: JobRun, report: Report) -> CheckpointReported:
    return CheckpointReported(engine_id=next(iter(run.engines)), version=2, report=report)


def test_a_seal_that_nobody_answers_is_given_to_others_and_then_up(run: JobRun) -> None:
    for layer in ALL:
        decision = decided(run, said(run, written(layer)))
        run = decision.run
    sealers = [seal.engine_id for seal in seals(decision)]
    for hours in (1, 2, 3):
        decision = decided(run, Tick(), seconds=3600.0 * hours)
        run = decision.run
        sealers += [seal.engine_id for seal in seals(decision)]
    assert len(set(sealers)) == 3, "each time another engine"
    assert told(decision) == ["checkpoint_failed"]
    assert run.checkpoints == {}
    assert run.state is JobState.RUNNING
    assert not run.stopping, "no engine is lost for a slow disk"


def test_a_version_with_a_gap_is_given_up_at_its_deadline(run: JobRun) -> None:
    """Reports were lost with the coordinator, and nobody knows."""
    run = decided(run, said(run, written(1))).run
    run = decided(run, Restarted(), seconds=5000.0).run
    assert 2 in decided(run, Tick(), seconds=5001.0).run.checkpoints, "its deadline begins anew"
    decision = decided(run, Tick(), seconds=9000.0)
    assert told(decision) == ["checkpoint_incomplete"]
    assert decision.run.checkpoints == {}


@given(story=stories())
@settings(deadline=None)
def test_a_seal_names_every_layer_once_and_none_follows_a_failure(
    run: JobRun, story: list[tuple[str, int]]
) -> None:
    seen: set[int] = set()
    sent: list[SealCheckpoint] = []
    has_failed = False
    for word, layer in story:
        taken = CheckpointTaken(layers=(layer,))
        reports: dict[str, Report] = {"taken": taken, "written": written(layer), "failed": FULL}
        decision = decided(run, said(run, reports[word]))
        run = decision.run
        if not sent and not has_failed:
            seen |= {layer} if word == "written" else set()
            has_failed = word == "failed"
        sent += [s.command for s in seals(decision) if isinstance(s.command, SealCheckpoint)]
    assert len(sent) == (seen == set(ALL))
    assert all([layer.layer for layer in seal.layers] == list(ALL) for seal in sent)
    if has_failed:
        assert run.checkpoints == {}
