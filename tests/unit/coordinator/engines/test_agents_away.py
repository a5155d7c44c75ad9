"""An agent, or the coordinator, that is away for a while is no loss."""

from planaria_coordinator.domain.engines.silence import Reach
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import running_world


async def test_an_agent_that_comes_back_within_its_lease_is_no_loss() -> None:
    """Only the death of a node or an engine is a loss."""
    world = await running_world(4)
    generation = world.run.generation
    agent = world.agents["n1"]
    agent.disconnect()
    await world.train(5)
    agent.agent_id = "restarted"
    await agent.connect()
    await world.train(5)
    assert world.run.generation == generation
    assert "node_lost" not in world.event_types()


async def test_a_transition_waits_for_an_agent_that_is_away() -> None:
    """Its engine cannot have heard: after the agent's return it has the whole deadline again."""
    world = await running_world(4)
    await world.train()
    away = world.agents["n2"]
    away.disconnect()
    await world.kill_node("n1")
    await world.advance(7)
    assert (await world.job()).state is JobState.RECOVERING
    away.held_kinds.add("quiesce")
    await away.connect()
    await world.advance(4)
    away.release()
    await world.settle()
    await world.train()
    assert (await world.job()).state is JobState.RUNNING
    assert world.event_types().count("engine_lost") == 0
    assert len(world.members()) == 3


async def test_an_agent_that_stays_away_longer_than_its_lease_is_lost() -> None:
    world = await running_world(4)
    world.agents["n1"].disconnect()
    await world.advance(10.5)
    assert "node_lost" in world.event_types()
    assert (await world.job()).state is JobState.RUNNING


async def test_a_node_that_was_declared_lost_joins_afresh() -> None:
    """A stale engine can do no harm: it is told to stop, and the node gets a new one [4]."""
    world = await running_world(4)
    agent = world.agents["n1"]
    old = set(agent.engines)
    agent.is_silent = True
    await world.advance(4)
    assert world.recoveries[-1].nodes_lost == ("n1",)
    agent.is_silent = False
    agent.session = None
    await agent.connect()
    await world.settle()
    await world.train(3)
    assert agent.engines
    assert not old & set(agent.engines)
    assert len(world.members()) == 4


async def test_a_restarted_coordinator_knows_how_far_the_job_was() -> None:
    """And a node that died meanwhile, unseen by others, is lost one lease after the start."""
    world = await running_world(4)
    await world.train(3)
    await world.coordinator.flush()
    world.agents.pop("n1").disconnect()
    await world.crash_coordinator()
    assert (await world.job()).step == 4
    await world.reconnect()
    await world.advance(10.5)
    assert world.recoveries[-1].nodes_lost == ("n1",)


async def test_an_agent_that_is_slow_to_find_a_restarted_coordinator_is_no_loss() -> None:
    """Its engines train on all the while; with another node's loss they may be all that is left."""
    world = await running_world(4)
    generation = world.run.generation
    slow = world.agents.pop("n1")
    slow.disconnect()
    world.reaches["n1"] = Reach.REACHABLE
    await world.crash_coordinator()
    await world.reconnect()
    await world.advance(9)
    world.agents["n1"] = slow
    await world.reconnect()
    await world.train(3)
    assert world.run.generation == generation
    assert "node_lost" not in world.event_types()


async def test_an_engine_that_peers_saw_end_is_lost_before_its_agent_is_back() -> None:
    """After a restart of the coordinator nobody waits for the lease of the dead."""
    world = await running_world(4)
    dead = world.agents.pop("n1")
    dead.disconnect()
    await world.crash_coordinator()
    await world.reconnect()
    for engine_id in dead.engines:
        world.tell_peer_lost(engine_id)
    await world.settle()
    assert world.recoveries[-1].cause == "engine_lost"
    assert len(world.members()) == 3
    await world.advance(3.5)
    assert "node_lost" in world.event_types()


async def test_an_engine_whose_end_is_reported_twice_is_forgotten() -> None:
    """Peers tell of it too, behind its agent: an agent that goes away later is no loss by that.

    Guard: `_unexplained`.
    """
    world = await running_world(4)
    agent = world.agents["n1"]
    (dead,) = agent.engines
    agent.lose_engine(dead)
    world.tell_peer_lost(dead)
    await world.settle()
    await world.train(3)
    agent.disconnect()
    await world.advance(2)
    await world.reconnect()
    await world.train(3)
    assert "node_lost" not in world.event_types()
    assert len(world.members()) == 4


async def test_a_coordinator_that_was_stopped_declares_no_node_lost() -> None:
    """After a stall of its own every node gets fresh grace."""
    world = await running_world(4)
    world.clock.advance(60)
    await world.coordinator.tick()
    await world.settle()
    assert "node_lost" not in world.event_types()


async def test_a_directive_that_cannot_be_stored_is_not_sent() -> None:
    """A full disk delays a recovery; it does not lose or double it [11]."""
    world = await running_world(4)
    world.database.num_failing_commits = 2
    world.agents.pop("n1").disconnect()
    world.clock.advance(0.1)
    await world.advance(12)
    for _ in range(100):
        if (await world.job()).state is JobState.RUNNING and world.recoveries:
            break
        await world.advance(0.5)
    assert not world.violations
    assert world.recoveries[-1].nodes_lost == ("n1",)
