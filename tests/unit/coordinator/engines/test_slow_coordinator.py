"""Whatever slows the coordinator down is held against no node."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.engines.node import Node
from planaria_coordinator.domain.engines.silence import Reach
from planaria_coordinator.domain.job.event import EventDraft
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.world import World, running_world


async def work(world: World, seconds: float) -> None:
    """Let engines work on a step without finishing it."""
    for _ in range(round(seconds / 0.1)):
        for agent in world.agents.values():
            for engine in agent.engines.values():
                engine.progress += 1
        await world.advance(0.1, tick_seconds=0.1)


@pytest.mark.parametrize("reads_first", [False, True])
async def test_a_probe_that_was_answered_while_the_coordinator_was_blocked_counts(
    reads_first: bool,
) -> None:
    """It may look at the clock before it reads the answers, or after."""
    world = await running_world(4)
    silent, *others = world.agents.values()
    silent.is_stopped = True
    await work(world, 2.9)
    for agent in others:
        agent.is_stopped = True  # what they say cannot be read
    await world.advance(0.2, tick_seconds=0.1)
    assert world.coordinator._state.nodes.require(silent.node_id).inquiry is not None
    world.clock.advance(1.2)
    if reads_first:
        be_read(others)
    await world.coordinator.tick()
    be_read(others)
    await world.settle()
    await work(world, 1)
    assert "node_lost" not in world.event_types()


def be_read(agents: Iterable[SimAgent]) -> None:
    """The coordinator reads what they have said meanwhile."""
    for agent in agents:
        agent.is_stopped = False
        assert agent.session is not None
        for say in agent.outbox:
            say(agent.session)
        agent.outbox.clear()
        agent.beat()


async def test_nodes_that_wait_at_the_door_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow database lets in two in ten seconds; then the others give up, and knock again."""
    world = await running_world(9)
    for node_id in world.agents:
        world.reaches[node_id] = Reach.REACHABLE
    await world.crash_coordinator()
    state = world.coordinator._state
    save_nodes, turns = state.save_nodes, asyncio.Semaphore(0)

    async def save_slowly(nodes: Sequence[Node], drafts: Sequence[EventDraft]) -> None:
        await turns.acquire()
        await save_nodes(nodes, drafts)

    monkeypatch.setattr(state, "save_nodes", save_slowly)
    knocking: list[asyncio.Task[None]] = []
    for tenths in range(500):
        if tenths % 100 == 1:
            outside = [agent for agent in world.agents.values() if agent.session is None]
            knocking = [asyncio.create_task(agent.connect()) for agent in outside]
        elif tenths % 50 == 49:
            turns.release()
        elif tenths % 100 == 98:
            for knock in knocking:
                knock.cancel()
        world.clock.advance(0.1)
        for agent in world.agents.values():
            agent.beat()
        looking = asyncio.create_task(world.coordinator.tick())
        await pass_turns()
    await asyncio.gather(looking, *knocking, return_exceptions=True)
    await world.train(2)
    assert "node_lost" not in world.event_types()


async def pass_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_loss_that_could_not_be_stored_leaves_no_suspicion() -> None:
    """The node was heard again before the database answered."""
    world = await running_world(4)
    agent, node = world.agents["n1"], world.coordinator._state.nodes.require("n1")
    agent.is_stopped = True
    await work(world, 4)
    assert not node.takes_work
    world.database.num_failing_commits = 3
    await world.advance(5, tick_seconds=0.1)
    world.database.num_failing_commits = 0
    agent.is_stopped = False
    await world.train(3)
    assert "node_lost" not in world.event_types()
    assert node.takes_work


async def test_a_loss_that_cannot_be_stored_at_all_keeps_no_job_from_its_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database takes everything but this one node."""
    world = await running_world(5)
    state = world.coordinator._state

    async def refuse(_nodes: Sequence[Node], _drafts: Sequence[EventDraft]) -> None:
        raise PlanariaError(ErrorReason.INTERNAL, "it is refused")

    world.hold("quiesce", "n2")
    await world.kill_node("n3")
    monkeypatch.setattr(state, "save_nodes", refuse)
    world.agents.pop("n1")
    for _ in range(60):
        with suppress(PlanariaError):
            await world.advance(0.5)
    assert "engine_lost" in world.event_types()
    monkeypatch.undo()
    await world.advance(5)
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING


async def test_nothing_is_kept_of_jobs_that_have_ended_and_nodes_that_are_removed() -> None:
    world = World()
    await world.start(2)
    await world.submit(training={"steps": 2})
    while world.job_id in world.coordinator._state.actors:
        await world.train()
    await world.kill_node("n1")
    await world.coordinator.flush()
    await world.advance(5)
    await world.coordinator.cluster.remove("n1")
    await world.advance(1)
    await world.coordinator.flush()
    supervisor = world.coordinator._supervisor
    assert not supervisor._progress
    assert supervisor._flushed_heartbeats.keys() == {"n0"}
