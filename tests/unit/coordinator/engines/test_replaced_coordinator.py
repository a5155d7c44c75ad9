"""A coordinator that was frozen while another took its place changes nothing when it wakes up."""

from contextlib import suppress

from planaria_common.errors import PlanariaError
from planaria_coordinator.application.agents.agent_session import AgentSession
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.domain.engines.directive import Directive
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import World, running_world


async def replaced_world() -> tuple[World, Coordinator, list[AgentSession]]:
    """Return a world with a new coordinator, the old one, and its sessions, which it has open."""
    world = await running_world(4)
    await world.train()
    sessions = [agent.session for agent in world.agents.values() if agent.session is not None]
    for agent in world.agents.values():
        assert agent._reading is not None
        agent._reading.cancel()
        agent.session = None
    old = await world.replace_coordinator()
    await world.reconnect()
    await world.train(3)
    for session in sessions:
        while not session._outgoing.empty():
            session._outgoing.get_nowait()
    return world, old, sessions


async def wake(world: World, old: Coordinator, seconds: float) -> None:
    """The old coordinator looks at the clock again, and finds that it has heard nobody."""
    for _ in range(round(seconds / 0.5)):
        world.clock.advance(0.5)
        for agent in world.agents.values():
            agent.beat()
        for look in (world.coordinator.tick, old.tick, old.flush):
            with suppress(PlanariaError):
                await look()
        await world.train()


async def test_a_replaced_coordinator_changes_nothing() -> None:
    """It holds every node for lost: none of that is stored, and training goes on."""
    world, old, _ = await replaced_world()
    generation = world.run.generation
    await wake(world, old, 20)
    await world.train(3)
    tables = world.database.tables
    assert {node.state for node in tables.nodes.values()} == {NodeState.READY}
    assert (await world.job()).state is JobState.RUNNING
    assert world.run.generation == generation
    assert not {"node_lost", "job_failed"} & set(world.event_types())
    await stop_frozen(old)


async def test_a_replaced_coordinator_stops_no_engine() -> None:
    """An engine that its successor started is a stranger to it."""
    world, old, sessions = await replaced_world()
    await world.kill_node("n3")
    await world.add_node("n4")
    agent = world.agents["n0"]
    mine = next(session for session in sessions if session.node_id == "n0")
    new = next(iter(world.agents["n4"].snapshots()))
    mine.heartbeat((*agent.snapshots(), new))
    await world.settle()
    sent = [mine._outgoing.get_nowait() for _ in range(mine._outgoing.qsize())]
    assert not any(isinstance(message, Directive) for message in sent)
    await stop_frozen(old)


async def stop_frozen(old: Coordinator) -> None:
    """End its tasks: what it decided it tries to store for ever."""
    for actor in tuple(old._state.actors.values()):
        await actor.stop()
    for task in old._tasks:
        task.cancel()
    for work in tuple(old._state._background_tasks):
        work.cancel()
