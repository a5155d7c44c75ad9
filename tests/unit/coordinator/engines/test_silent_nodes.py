"""What the coordinator does about silent nodes: whom it asks, what it says, what it waits for."""

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.agents.agent_messages import ProbeResult
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.engines.silence import Reach
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import World, running_world


async def states(world: World) -> set[NodeState]:
    return {node.state for node in world.coordinator.cluster.all()}


async def silent(world: World) -> tuple[str, ...]:
    """Return the nodes that the job says are silent."""
    conditions = (await world.job()).conditions
    assert {condition.type for condition in conditions} <= {"NODES_SILENT"}
    return tuple(node_id for condition in conditions for node_id in condition.node_ids)


async def compute(world: World, seconds: int) -> None:
    """Let engines work on a step without finishing it."""
    for _ in range(seconds):
        for agent in world.agents.values():
            for engine in agent.engines.values():
                engine.progress += 1
        await world.advance(1)


async def test_a_node_that_is_cut_off_is_lost_as_soon_as_others_say_so() -> None:
    """Not after the lease of its agent, though its session has ended as well."""
    world = await running_world(4)
    world.agents.pop("n1").disconnect()
    await world.advance(2.5)
    assert "node_lost" not in world.event_types()
    await world.advance(1.5)
    assert world.recoveries[-1].nodes_lost == ("n1",)
    assert "nodes_silent" not in world.event_types()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_suspected_node_is_lost_at_once_unless_it_answers(answers: bool) -> None:
    world = await running_world(4)
    world.agents["n1"].is_silent = not answers
    world.coordinator._state.nodes.suspect("n1")
    await world.settle()
    await world.advance(0.5, tick_seconds=0.1)
    assert ("node_lost" in world.event_types()) is not answers


async def test_a_coordinator_that_is_cut_off_takes_nobody_to_be_lost() -> None:
    """For however long; then all goes on, and nobody was fenced."""
    world = await running_world(4)
    await world.train(2)
    generation, lost_time = world.run.generation, (await world.job()).time_seconds
    for agent in world.agents.values():
        agent.is_silent = True
    await world.advance(60)
    assert await silent(world) == ("n0", "n1", "n2", "n3")
    assert {node.silent_since_time is None for node in world.coordinator.cluster.all()} == {False}
    for agent in world.agents.values():
        agent.is_silent = False
    await world.train(2)
    assert await silent(world) == ()
    assert world.event_types().count("nodes_silent") == 1
    assert world.event_types().count("nodes_heard") == 1
    assert await states(world) == {NodeState.READY}
    job = await world.job()
    assert (job.state, world.run.generation) == (JobState.RUNNING, generation)
    idle = {name for name, seconds in job.time_seconds.items() if seconds > lost_time[name]}
    assert idle <= {"productive"}


async def test_sessions_that_end_after_a_silence_leave_agents_their_lease() -> None:
    """When the cable is back, connections end of which the other end knows nothing any more."""
    world = await running_world(4)
    for agent in world.agents.values():
        agent.is_silent = True
    await world.advance(30)
    for agent in world.agents.values():
        agent.is_silent = False
        agent.disconnect()
    await world.advance(2)
    await world.agents["n0"].connect()
    await world.advance(7)
    await world.reconnect()
    await world.train(2)
    assert "node_lost" not in world.event_types()


async def test_a_node_that_others_reach_is_silent_and_not_lost() -> None:
    world = await running_world(4)
    generation = world.run.generation
    world.agents["n1"].is_stopped = True
    await compute(world, 5)
    assert await silent(world) == ("n1",)
    assert world.run.generation == generation
    assert "node_lost" not in world.event_types()
    world.agents["n1"].is_stopped = False
    await world.train(2)
    assert await silent(world) == ()
    assert world.run.generation == generation


async def test_a_frozen_node_for_which_its_job_waits_is_lost() -> None:
    """Its machine answers: the kernel does so for processes that are stopped."""
    world = await running_world(4)
    await world.train(1)
    world.agents["n1"].is_stopped = True
    await world.advance(2.5)
    assert "node_lost" not in world.event_types()
    await world.advance(2.5)
    assert world.recoveries[-1].nodes_lost == ("n1",)
    await world.train(2)


async def test_a_silent_node_gets_no_new_work() -> None:
    world = await running_world(3)
    world.agents["n1"].is_stopped = True
    await world.advance(5)
    assert not world.coordinator._state.nodes.require("n1").takes_work


async def test_a_fence_does_without_a_machine_that_hangs() -> None:
    """Others reach it, and its engine does not answer: it is given up, and then its node is."""
    world = await running_world(4)
    world.agents["n1"].is_stopped = True
    await compute(world, 5)
    await world.kill_node("n2")
    await world.advance(4)
    assert (await world.job()).state is JobState.RECOVERING
    await world.advance(8)
    assert world.event_types().count("node_lost") == 2
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_fence_waits_for_nodes_of_which_nothing_is_known() -> None:
    """All that are left are silent at once: no engine is given up for not answering."""
    world = await running_world(4)
    await world.train(1)
    world.hold("quiesce")
    await world.kill_node("n2")
    for agent in world.agents.values():
        agent.is_silent = True
    await world.advance(60)
    assert (await world.job()).state is JobState.RECOVERING
    assert "engine_lost" not in world.event_types()[-3:]
    for agent in world.agents.values():
        agent.is_silent = False
    await world.release()
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert world.event_types().count("node_lost") == 1


async def test_answers_that_are_late_or_garbage_change_nothing() -> None:
    """Of an asker that was not asked, of another inquiry, twice, and of a node that is heard."""
    world = await running_world(4)
    nodes = world.coordinator._state.nodes
    for session in [agent.session for agent in world.agents.values()]:
        assert session is not None
        for probe_id in ("", "n1", "n1/probe-1", "nobody/probe-1", "/"):
            session.probe_result(ProbeResult(probe_id=probe_id, reach=Reach.UNREACHABLE))
    world.agents["n1"].is_stopped = True
    await world.advance(4)
    inquiry = nodes.require("n1").inquiry
    assert inquiry is not None
    assert set(inquiry.answers) == {"n0", "n2", "n3"}
    for asker in ("n1", "n9", "n0"):
        nodes.answered(asker, inquiry.probe_id, Reach.UNREACHABLE)
    nodes.answered("n0", "n1/probe-999", Reach.UNREACHABLE)
    nodes.answered("n0", inquiry.probe_id, None)
    assert set(nodes.require("n1").inquiry.answers.values()) == {Reach.REACHABLE}  # type: ignore[union-attr]
    world.agents["n1"].is_stopped = False
    await world.advance(1)
    nodes.answered("n2", inquiry.probe_id, Reach.UNREACHABLE)
    await world.advance(1)
    assert "node_lost" not in world.event_types()


async def test_after_a_start_silence_counts_from_the_first_agent_that_is_back() -> None:
    """However long nobody came: they may all have been out of reach."""
    world = await running_world(4)
    for node_id in world.agents:
        world.reaches[node_id] = Reach.REACHABLE
    await world.crash_coordinator()
    await world.advance(3600)
    assert "node_lost" not in world.event_types()
    assert await silent(world) == ("n0", "n1", "n2", "n3")
    for node_id in ("n0", "n2", "n3"):
        await world.agents[node_id].connect()
    await world.advance(9)
    await world.reconnect()
    await world.train(2)
    assert "node_lost" not in world.event_types()


async def test_after_an_outage_of_the_database_agents_have_time_to_come_back() -> None:
    """Their sessions could not be opened meanwhile."""
    world = await running_world(4)
    for agent in world.agents.values():
        agent.disconnect()
    world.database.num_failing_commits = 1 << 30
    for _ in range(10):
        await world.advance(2)
        await world.reconnect_once()
    world.database.num_failing_commits = 0
    await world.advance(1)
    await world.reconnect()
    await world.train(2)
    assert "node_lost" not in world.event_types()


async def test_an_evicted_node_is_lost_at_once_and_joins_afresh() -> None:
    """An administrator knows better than anybody can see; repeating it changes nothing."""
    world = await running_world(4)
    agent = world.agents["n1"]
    old = set(agent.engines)
    for _ in range(2):
        node = await world.coordinator.cluster.evict("n1")
        assert node.state is NodeState.LOST
    await world.settle()
    assert world.recoveries[-1].nodes_lost == ("n1",)
    await agent.connect()
    await world.settle()
    await world.train(3)
    assert not old & set(agent.engines)
    assert len(world.members()) == 4
    with pytest.raises(PlanariaError) as caught:
        await world.coordinator.cluster.evict("n9")
    assert caught.value.reason is ErrorReason.NODE_NOT_FOUND


async def test_an_evicted_node_is_waited_for_no_longer() -> None:
    """The job fails only now: the last holders of its layers are gone for good."""
    world = await running_world(resources={"min_nodes_per_pipeline": 2})
    await world.train(1)
    for node_id in ("n0", "n1"):
        world.agents.pop(node_id).disconnect()
    await world.advance(12)
    assert (await world.job()).state is JobState.WAITING
    for node_id in ("n0", "n1"):
        await world.coordinator.cluster.evict(node_id)
        await world.settle()
    assert (await world.job()).state is JobState.FAILED
