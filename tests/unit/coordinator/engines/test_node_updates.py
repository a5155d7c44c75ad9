"""What becomes of a node is stored, and a job has not heard of it: the coordinator dies in between.

Guard: `send_node_updates`.
"""

from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from planaria_common.errors import PlanariaError
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.engines.silence import Reach
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import NodesGranted, Signal
from unit.coordinator.simulation.world import World, running_world


@contextmanager
def deaf_jobs() -> Iterator[None]:
    """Jobs hear nothing of their nodes."""

    def post(actor: JobActor, signal: Signal) -> None:
        if not hasattr(signal, "node_id"):
            decide(actor, signal)

    decide = JobActor.post
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobActor, "post", post)
        yield


async def crash_and_train(world: World) -> None:
    await world.crash_coordinator()
    await world.reconnect()
    await world.train(3)


@pytest.mark.parametrize("is_seen", [True, False], ids=["engine seen to die", "silent"])
async def test_a_node_that_is_lost(is_seen: bool) -> None:
    world = await running_world(4)
    with deaf_jobs():
        await world.kill_node("n1", seen_by_peers=is_seen)
        await world.advance(10.5)
    assert "node_lost" in world.event_types()
    await crash_and_train(world)
    assert [each.nodes_lost for each in world.recoveries] == [("n1",)]
    assert "n1" not in world.run.held_nodes
    assert len(world.members()) == 3


async def test_a_node_that_is_to_be_freed() -> None:
    world = await running_world(4)
    with deaf_jobs():
        await world.coordinator.cluster.drain("n1")
    await crash_and_train(world)
    assert (await world.coordinator.cluster.get("n1")).state is NodeState.DRAINED
    assert len(world.members()) == 3


async def test_a_node_that_has_been_freed_but_for_the_stop_of_its_engine() -> None:
    """It is not wanted twice, and may come back. Guard: `drain_wanted` looks at the job's nodes."""
    world = await running_world(4)
    world.agents["n1"].held_kinds.add("stop")
    await world.coordinator.cluster.drain("n1")
    await world.train(2)
    assert "n1" not in world.run.nodes
    assert "n1" in world.run.held_nodes
    await crash_and_train(world)
    world.agents["n1"].held_kinds.clear()
    world.agents["n1"].release()
    await world.train()
    assert world.run.draining == ()
    await world.coordinator.cluster.uncordon("n1")
    await world.train(3)
    assert len(world.members()) == 4


async def test_a_node_that_is_to_be_kept_after_all() -> None:
    world = await running_world(4)
    engines = set(world.run.engines)
    world.planner.is_open.clear()  # the drain waits for its plan
    await world.coordinator.cluster.drain("n1")
    with deaf_jobs():
        await world.coordinator.cluster.uncordon("n1")
    world.planner.is_open.set()
    await crash_and_train(world)
    assert world.run.draining == ()
    assert (await world.coordinator.cluster.get("n1")).state is NodeState.READY
    assert {engine.id for engine in world.members()} == engines


async def test_a_node_that_is_lost_while_it_is_given_to_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loss is stored, and told to those who hold it, before the job does."""
    world = World()
    await world.start(3)
    nodes, decide = world.coordinator._state.nodes, JobActor.post

    def post(actor: JobActor, signal: Signal) -> Future[None]:
        entry = nodes.get("n2")
        if isinstance(signal, NodesGranted) and entry is not None:
            nodes.put(replace(entry.node, state=NodeState.LOST))
            world.agents.pop("n2").disconnect()
        return decide(actor, signal)

    monkeypatch.setattr(JobActor, "post", post)
    await world.submit(resources={"min_nodes": 3})
    assert "n2" not in world.agents
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert "n2" not in world.run.held_nodes


async def test_a_job_hears_of_a_lost_node_once_that_is_stored() -> None:
    """Else a crash between the two leaves a node that is up for everybody but the job."""
    world = await running_world(4)
    num_faults = world.run.num_faults
    world.agents.pop("n1").disconnect()
    world.reaches["n1"] = Reach.REACHABLE  # lost after its lease
    await world.advance(9)
    world.database.num_failing_commits = 1
    while world.database.num_failing_commits:  # until the loss could not be stored
        world.clock.advance(0.5)
        for agent in world.agents.values():
            agent.beat()
        with suppress(PlanariaError):
            await world.coordinator.tick()
    await world.settle()
    assert world.run.num_faults == num_faults
    await world.advance(12)  # after an outage agents have time to come back
    assert world.run.num_faults == num_faults + 1
