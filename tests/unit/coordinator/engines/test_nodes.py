"""Nodes join, leave on notice, are refused, and are kept apart from impostors."""

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.version import PROTOCOL_VERSION
from planaria_coordinator.application.agents.agent_messages import Hello
from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.utilization import counted_flops
from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.simulation.agent import NUM_LAYERS, SimAgent
from unit.coordinator.simulation.world import World, running_world


async def state_of(world: World, node_id: str) -> NodeState:
    return (await world.coordinator.cluster.get(node_id)).state


async def test_a_joiner_enters_at_a_commit_and_nothing_is_redone() -> None:
    """The others train while it starts; then all change over behind the same commit."""
    world = await running_world(3)
    world.agents["n0"].held_kinds.add("switch")
    await world.add_node("n9")
    await world.train()
    assert world.phase is Phase.SWITCHING
    world.agents["n0"].release()
    await world.settle()
    await world.train(2)
    recovery = world.recoveries[-1]
    assert recovery.cause == "node_joined"
    assert recovery.nodes_joined == ("n9",)
    assert recovery.redone_microbatches == 0
    assert recovery.copied_bytes == 600
    assert len(world.members()) == 4


async def test_a_joiner_gets_the_operation_counts_of_the_first_engines() -> None:
    """The operations of the model are the same everywhere, and take a second to count."""
    world = await running_world(2)
    assert [agent.num_counts for agent in world.agents.values()] == [1, 1]
    for node_id in ("n8", "n9"):
        await world.add_node(node_id)
        await world.train(2)
        assert world.agents[node_id].num_counts == 0
    await world.kill_node("n0")
    await world.kill_node("n1")
    await world.add_node("n7")
    await world.train(2)
    assert world.agents["n7"].num_counts == 0  # nor if only joiners are left to have been told
    assert counted_flops(world.run) == tuple(range(NUM_LAYERS))


async def test_several_joiners_enter_together() -> None:
    """While the first one starts a second comes: one transition for both."""
    world = await running_world(2)
    for node_id in ("n8", "n9"):
        await world.add_node(node_id, "prepare")
    for node_id in ("n8", "n9"):
        world.agents[node_id].release()
    await world.settle()
    await world.train(2)
    assert world.recoveries[-1].nodes_joined == ("n8", "n9")
    assert len(world.recoveries) == 1
    assert len(world.members()) == 4


async def test_a_joiner_that_dies_while_it_starts_disturbs_no_engine() -> None:
    world = await running_world(3)
    generation = world.run.placement.generation if world.run.placement else 0
    agent = await world.add_node("n9", "prepare")
    agent.is_silent = True
    await world.train(4)
    assert "join_cancelled" in world.event_types()
    job = await world.job()
    assert job.state is JobState.RUNNING
    assert job.step == 5
    assert world.run.placement is not None
    assert world.run.placement.generation == generation


async def test_a_loss_while_a_joiner_starts_is_dealt_with_at_once() -> None:
    """The join is put off; the joiner goes on starting and enters afterwards."""
    world = await running_world(3)
    agent = await world.add_node("n9", "prepare")
    await world.kill_node("n0")
    assert (await world.job()).state is JobState.RUNNING
    await world.train()
    agent.release()
    await world.settle()
    await world.train(3)
    assert [r.cause for r in world.recoveries] == ["node_lost", "node_joined"]
    assert len(world.members()) == 3


async def test_a_joiner_that_is_of_no_use_is_left_alone() -> None:
    """The planner would leave it idle: nobody stops for it."""
    world = await running_world(3)
    world.planner.uses_joiners = False
    agent = await world.add_node("n9")
    await world.train(2)
    assert not agent.engines
    assert world.run.generation == 1


async def test_a_joiner_with_other_data_is_refused_and_training_goes_on() -> None:
    world = await running_world(3)
    agent = SimAgent(world, "n9")
    agent.data_digest = "other"
    world.agents["n9"] = agent
    await agent.connect()
    await world.settle()
    await world.train(2)
    refused = [e for e in world.events if e.type == "node_refused"]
    assert [e.node_id for e in refused] == ["n9"]
    assert not agent.engines
    assert (await world.job()).state is JobState.RUNNING


async def test_a_joiner_that_cannot_start_is_refused_for_this_job() -> None:
    world = await running_world(3)
    agent = SimAgent(world, "n9")
    agent.refusal = Failure(reason=ErrorReason.DATA_UNUSABLE, message="no file", metadata={})
    world.agents["n9"] = agent
    await agent.connect()
    await world.settle()
    await world.train(2)
    assert world.event_types().count("node_refused") == 1
    assert (await world.job()).state is JobState.RUNNING


async def test_max_nodes_is_never_exceeded() -> None:
    world = await running_world(3, resources={"max_nodes": 3})
    agent = await world.add_node("n9")
    assert not agent.engines
    await world.kill_node("n0")
    await world.train(2)
    assert agent.engines
    assert len(world.members()) == 3


async def test_a_drained_node_is_freed_without_losing_a_microbatch() -> None:
    world = await running_world(4)
    node = await world.coordinator.cluster.drain("n1")
    assert node.state is NodeState.DRAINING
    await world.settle()
    await world.train(3)
    assert await state_of(world, "n1") is NodeState.DRAINED
    assert not world.agents["n1"].engines
    assert world.recoveries[-1].cause == "node_drained"
    assert world.recoveries[-1].redone_microbatches == 0
    await world.coordinator.cluster.uncordon("n1")
    await world.settle()
    await world.train(2)
    assert len(world.members()) == 4


async def test_a_node_without_work_is_drained_at_once() -> None:
    world = World()
    await world.start(1)
    await world.coordinator.cluster.drain("n0")
    await world.settle()
    assert await state_of(world, "n0") is NodeState.DRAINED
    with pytest.raises(PlanariaError, match="n0 is DRAINED: its agent still runs"):
        await world.coordinator.cluster.remove("n0")
    await world.kill_node("n0")
    await world.coordinator.cluster.remove("n0")


async def test_a_node_that_cannot_be_spared_is_drained_when_another_has_come() -> None:
    """The job keeps it until it can go on without it."""
    world = await running_world(1, resilience={"fault_tolerance": 0})
    await world.coordinator.cluster.drain("n0")
    await world.settle()
    await world.train(2)
    assert await state_of(world, "n0") is NodeState.DRAINING
    await world.add_node("n9")
    await world.train(3)
    assert await state_of(world, "n0") is NodeState.DRAINED
    assert [node_of(engine.id) for engine in world.members()] == ["n9"]


async def test_a_cordoned_node_keeps_its_work_and_gets_no_new() -> None:
    world = await running_world(2)
    await world.coordinator.cluster.cordon("n1")
    await world.train()
    assert len(world.members()) == 2
    agent = world.agents["n1"]
    agent.lose_engine(next(iter(agent.engines)))
    await world.settle()
    await world.train(2)
    assert await state_of(world, "n1") is NodeState.CORDONED
    assert not agent.engines
    assert len(world.members()) == 1


async def test_only_nodes_that_are_gone_can_be_removed() -> None:
    world = await running_world(2)
    with pytest.raises(PlanariaError, match="only a node that is LOST or DRAINED"):
        await world.coordinator.cluster.remove("n1")
    await world.kill_node("n1")
    await world.coordinator.cluster.remove("n1")
    with pytest.raises(PlanariaError, match="there is no node n1"):
        await world.coordinator.cluster.get("n1")


@pytest.mark.parametrize("before", [NodeState.READY, NodeState.CORDONED])
@pytest.mark.parametrize("says_so", [True, False])
async def test_a_node_that_has_left_comes_back_as_it_was(before: NodeState, says_so: bool) -> None:
    """Also where the coordinator was away when its agent ended, as in a restart of all machines."""
    world = await running_world(3)
    if before is NodeState.CORDONED:
        await world.coordinator.cluster.cordon("n2")
    agent = world.agents["n2"]
    assert agent.session is not None
    agent.session.heartbeat(agent.snapshots(), wants_to_leave=True)
    await world.settle()
    await world.train(3)
    assert await state_of(world, "n2") is NodeState.DRAINED
    if says_so:
        agent.session.leave()
        await world.settle()
    world.agents.pop("n2").disconnect()
    await world.settle()
    await world.add_node("n2")
    assert await state_of(world, "n2") is before


async def test_who_is_drained_by_hand_stays_so_when_its_agent_starts_again() -> None:
    world = await running_world(3)
    agent = world.agents["n2"]
    assert agent.session is not None
    agent.session.heartbeat(agent.snapshots(), wants_to_leave=True)
    await world.settle()
    await world.coordinator.cluster.drain("n2")
    await world.train(3)
    world.agents.pop("n2").disconnect()
    await world.settle()
    await world.add_node("n2")
    assert await state_of(world, "n2") is NodeState.DRAINED


def hello(
    node_id: str = "n0", agent_id: str = "other", protocol_version: int = PROTOCOL_VERSION
) -> Hello:
    return Hello(
        node_id=node_id,
        agent_id=agent_id,
        version="1",
        protocol_version=protocol_version,
        advertise_address="127.0.0.1",
        num_accelerators=1,
        accelerator_kind="cpu",
        accelerator_memory_bytes=1,
        pid=1,
        engines=(),
        boot_id="boot",
    )


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (hello(), ErrorReason.NODE_NAME_TAKEN),
        (hello(node_id="n7", protocol_version=PROTOCOL_VERSION - 1), ErrorReason.VERSION_MISMATCH),
        (hello(node_id="a/b"), ErrorReason.INVALID_ARGUMENT),
        (hello(node_id="n7", agent_id=""), ErrorReason.INVALID_ARGUMENT),
    ],
)
async def test_a_session_that_must_not_be_is_refused(greeting: Hello, reason: ErrorReason) -> None:
    world = World()
    await world.start(1)
    with pytest.raises(PlanariaError) as caught:
        await world.coordinator.sessions.open(greeting)
    assert caught.value.reason is reason


async def test_another_agent_takes_over_a_name_when_the_first_has_fallen_silent() -> None:
    world = World()
    await world.start(1)
    world.agents["n0"].is_silent = True
    world.clock.advance(3.5)
    session = await world.coordinator.sessions.open(hello())
    assert session.agent_id == "other"
    session.close()
