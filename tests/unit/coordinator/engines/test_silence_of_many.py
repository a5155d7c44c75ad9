"""Many fall silent, or look ended, at once: whose word decides, and what it costs."""

import pytest

from planaria_coordinator.domain.engines.links import LinkFailure
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.engines.silence import Reach
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import World, running_world


def lost(world: World) -> set[str]:
    return {node.id for node in world.coordinator.cluster.all() if node.state is NodeState.LOST}


def freeze(world: World, *node_ids: str) -> None:
    """Agent and engines are stopped; kernels answer for them."""
    for node_id in node_ids:
        world.agents[node_id].is_stopped = True


def reset_all(world: World) -> None:
    """A firewall ends every connection: of agents with us, and of engines with each other."""
    engines = [engine for agent in world.agents.values() for engine in agent.engines.values()]
    for agent in world.agents.values():
        for mine in agent.engines.values():
            for peer in engines:
                if peer is not mine:
                    world.tell_link_failed(agent, mine.id, peer.id, LinkFailure.ENDED)
    for agent in world.agents.values():
        agent.disconnect()


@pytest.mark.parametrize(
    ("num_nodes", "fault_tolerance", "pipeline_nodes"), [(2, 0, 2), (4, 1, 2), (4, 1, 1)]
)
async def test_a_firewall_that_ends_every_connection_ends_no_job(
    num_nodes: int, fault_tolerance: int, pipeline_nodes: int
) -> None:
    """Not even where each layer is on one node: all come back with what they hold."""
    world = await running_world(
        num_nodes,
        resilience={"fault_tolerance": fault_tolerance},
        resources={"min_nodes_per_pipeline": pipeline_nodes},
    )
    await world.train(1)
    reset_all(world)
    await world.settle()
    await world.advance(2)
    await world.reconnect()
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert "node_lost" not in world.event_types()


async def test_the_only_holder_of_layers_is_not_lost_before_others_were_asked() -> None:
    """Its session ended and a peer says that its engine did: its machine answers."""
    world = await running_world(
        2, resilience={"fault_tolerance": 0}, resources={"min_nodes_per_pipeline": 2}
    )
    agent = world.agents["n1"]
    world.tell_peer_lost(next(iter(agent.engines)))
    agent.disconnect()
    await world.settle()
    assert not lost(world)
    await world.reconnect()
    await world.train(2)
    assert "node_lost" not in world.event_types()


async def test_a_node_that_ended_is_lost_though_it_alone_holds_layers() -> None:
    """It refuses connections. It may be back, so the job waits and says for whom."""
    world = await running_world(
        2, resilience={"fault_tolerance": 0}, resources={"min_nodes_per_pipeline": 2}
    )
    world.reaches["n1"] = Reach.REFUSED
    await world.kill_node("n1")
    await world.advance(4)
    assert lost(world) == {"n1"}
    job = await world.job()
    assert job.state is JobState.WAITING
    assert "only on n1" in job.waiting_reason


async def test_who_accuses_everybody_is_not_the_only_one_that_is_asked() -> None:
    """The others are late with their answers: they are busy."""
    world = await running_world(4)
    nodes = world.coordinator._state.nodes
    for node_id in ("n1", "n2", "n3"):
        world.reaches[node_id] = Reach.UNREACHABLE  # as n0 sees them: it is cut off
        world.agents[node_id].is_stopped = True
        nodes.suspect(node_id)
    await world.settle()
    await world.advance(1.2, tick_seconds=0.1)
    for node_id in ("n1", "n2", "n3"):
        world.agents[node_id].is_stopped = False
    await world.train(2)
    assert "node_lost" not in world.event_types()


async def test_the_first_that_is_back_says_nothing_of_the_others_yet() -> None:
    """After a fault of the whole network they come back one after another."""
    world = await running_world(4)
    for agent in world.agents.values():
        agent.is_silent = True
    await world.advance(30)
    world.agents["n0"].is_silent = False
    await world.advance(2.5, tick_seconds=0.1)
    assert "node_lost" not in world.event_types()
    for agent in world.agents.values():
        agent.is_silent = False
    await world.train(2)
    assert "node_lost" not in world.event_types()


async def test_nodes_that_are_lost_together_cause_one_recovery() -> None:
    """A rack without power: one generation fences the job, not one for each node."""
    world = await running_world(8)
    generation = world.run.generation
    for node_id in ("n1", "n2", "n3", "n4"):
        world.agents.pop(node_id)
    await world.advance(5)
    assert lost(world) == {"n1", "n2", "n3", "n4"}
    assert world.event_types().count("recovery_started") == 1
    await world.train(2)
    assert set(world.recoveries[-1].nodes_lost) == {"n1", "n2", "n3", "n4"}
    assert world.run.generation <= generation + 3


async def test_a_frozen_majority_does_not_hold_a_job_up_for_ever() -> None:
    """Others reach the machines, the job waits for them, and the rest hold every layer."""
    world = await running_world(4)
    await world.train(1)
    freeze(world, "n1", "n2")
    await world.advance(9)
    assert not lost(world)
    await world.advance(9)
    assert lost(world) == {"n1", "n2"}
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_recovery_does_not_wait_for_ever_for_a_frozen_majority() -> None:
    world = await running_world(6)
    world.hold("quiesce", "n1", "n2")
    await world.kill_node("n5")
    freeze(world, "n1", "n2")
    await world.advance(20)
    assert lost(world) == {"n1", "n2", "n5"}
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING


@pytest.mark.parametrize(("num_silent", "seconds"), [(2, 8.0), (3, 30.0)])
async def test_nodes_on_which_engines_start_are_not_lost_because_many_are_silent(
    num_silent: int, seconds: float
) -> None:
    """The coordinator's cable is cut while a job starts, or that of a rack is for a while."""
    world = World()
    await world.start(3)
    world.hold("prepare")
    await world.submit()
    for agent in list(world.agents.values())[:num_silent]:
        agent.is_silent = True
    await world.advance(seconds)
    for agent in world.agents.values():
        agent.is_silent = False
    await world.release()
    await world.train(2)
    assert "node_lost" not in world.event_types()


async def test_nodes_that_accuse_each_other_and_beat_do_not_delay_the_loss_of_another() -> None:
    """All are suspected, and none of them is silent but the one that is gone."""
    world = await running_world(3)
    world.agents.pop("n2")
    await world.advance(2.8, tick_seconds=0.1)
    for node_id in ("n0", "n1"):
        world.agents[node_id].is_stopped = True  # its echo is late
        world.coordinator._state.nodes.suspect(node_id)
    await world.advance(0.3, tick_seconds=0.1)
    assert not world.coordinator._state.nodes.is_blind
    for node_id in ("n0", "n1"):
        world.agents[node_id].is_stopped = False
    await world.advance(2, tick_seconds=0.1)
    assert lost(world) == {"n2"}
