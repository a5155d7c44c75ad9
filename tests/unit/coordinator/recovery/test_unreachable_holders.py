"""Unreachable is not gone: a job waits for the last holders of its state, and takes them back."""

import json

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.domain.engines.directive import InitialState
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.checkpoint_world import announce, write
from unit.coordinator.simulation.world import World, running_world

PAIRS = {"min_nodes_per_pipeline": 2}
"""Of four nodes n0 and n1 hold the first half of the model, n2 and n3 the other."""


async def waiting_world(**changes: object) -> tuple[World, list[SimAgent]]:
    """Return a job both holders of whose first layers are out of reach, and their agents."""
    world = await running_world(resources=PAIRS, **changes)
    await world.train(2)
    if "checkpoint" in changes:
        await write(world, 2, announce(world, 2))
        await world.train(1)
    away = [await lose(world, "n0"), await lose(world, "n1")]
    await world.advance(12)
    job = await world.job()
    assert job.state is JobState.WAITING
    return world, away


async def lose(world: World, node_id: str) -> SimAgent:
    """Cut a node off: its engines live, and nobody hears them."""
    agent = world.agents.pop(node_id)
    agent.disconnect()
    await world.settle()
    return agent


async def bring_back(world: World, *agents: SimAgent) -> None:
    for agent in agents:
        world.agents[agent.node_id] = agent
        await agent.connect()
    await world.settle()


async def test_the_job_waits_and_says_for_whom_and_since_when() -> None:
    """[10] Who is unreachable is not gone: nothing is given up, and nobody is asked to act."""
    world, _ = await waiting_world()
    reason = (await world.job()).waiting_reason
    assert reason.startswith("layers 0-2 are only on n0, n1, which cannot be reached since 2026-")
    await world.add_node("n9")
    await world.advance(3600)
    job = await world.job()
    assert (job.state, job.waiting_reason) == (JobState.WAITING, reason)
    assert world.events[-1].type != "job_failed"
    assert "n9" not in world.run.nodes


@pytest.mark.parametrize("num_back", [1, 2])
async def test_holders_that_come_back_are_taken_back(num_back: int) -> None:
    """One of them is enough when it holds every layer; its engine goes on as it is."""
    world, away = await waiting_world()
    step = (await world.job()).step
    first = set(away[0].engines)
    await bring_back(world, *away[:num_back])
    await world.settle()
    job = await world.job()
    assert (job.state, job.step) == (JobState.RUNNING, step)
    assert first <= world.run.engines.keys()
    await world.train(2)
    assert (await world.job()).step == step + 2
    assert not world.run.absent


async def test_a_node_that_is_back_too_late_joins_afresh() -> None:
    """Once the others have gone on, its old engine is stopped."""
    world = await running_world(resources=PAIRS)
    agent = await lose(world, "n0")
    old = set(agent.engines)
    await world.advance(12)
    await world.train(2)
    await bring_back(world, agent)
    await world.advance(2)
    assert old.isdisjoint(agent.engines)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_node_that_is_back_before_the_version_is_known_waits_for_the_verdict() -> None:
    """Its engine is stopped only when it is known that nobody needs it."""
    world = await running_world(resources=PAIRS)
    world.hold("quiesce", "n2", "n3")
    away = [await lose(world, "n0"), await lose(world, "n1")]
    await world.advance(4)
    await bring_back(world, away[0])
    assert away[0].engines.keys() <= world.run.absent.keys()
    await world.release()
    await world.advance(1)
    assert (await world.job()).state is JobState.RUNNING
    assert away[0].engines.keys() <= world.run.engines.keys()


async def test_who_comes_back_and_vanishes_again_is_waited_for_again() -> None:
    world, away = await waiting_world()
    away[0].held_kinds.add("quiesce")
    await bring_back(world, away[0])
    await lose(world, "n0")
    away[0].release()
    await world.advance(12)
    job = await world.job()
    assert job.state is JobState.WAITING
    assert "only on n0, n1" in job.waiting_reason
    await bring_back(world, away[1])
    assert (await world.job()).state is JobState.RUNNING


async def test_a_new_coordinator_waits_for_the_same() -> None:
    """[7] All of it is stored."""
    world, away = await waiting_world()
    reason = (await world.job()).waiting_reason
    await world.crash_coordinator()
    await world.reconnect()
    await world.advance(15)
    job = await world.job()
    assert (job.state, job.waiting_reason) == (JobState.WAITING, reason)
    await bring_back(world, *away)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_job_that_was_cancelled_meanwhile_stops_who_comes_back() -> None:
    world, away = await waiting_world()
    await world.coordinator.jobs.cancel(world.job_id)
    await bring_back(world, *away)
    await world.advance(2)
    assert not any(agent.engines for agent in away)


async def test_a_paused_job_takes_them_back_and_goes_on_when_it_is_resumed() -> None:
    world, away = await waiting_world()
    await world.coordinator.jobs.pause(world.job_id)
    await bring_back(world, *away)
    assert (await world.job()).state is JobState.PAUSED
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    assert (await world.job()).state is JobState.RUNNING


async def test_a_paused_job_that_is_resumed_without_them_waits_again() -> None:
    world, away = await waiting_world()
    await world.coordinator.jobs.pause(world.job_id)
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    job = await world.job()
    assert job.state is JobState.WAITING
    assert "only on n0, n1" in job.waiting_reason
    await bring_back(world, *away)
    assert (await world.job()).state is JobState.RUNNING


@pytest.mark.parametrize("how", ["removed", "without their engines"])
async def test_when_the_last_holders_are_gone_the_job_fails(how: str) -> None:
    """An administrator says so, or the machine does."""
    world, away = await waiting_world()
    for agent in away:
        assert (await world.job()).state is JobState.WAITING
        if how == "removed":
            await world.coordinator.cluster.remove(agent.node_id)
        else:
            agent.engines.clear()
            agent.boot_id = "another"
            await bring_back(world, agent)
        await world.settle()
    job = await world.job()
    assert job.error is not None
    assert job.error.reason is ErrorReason.STATE_LOST
    assert job.error.message.startswith("every replica of layers 0,1,2 is gone at step 3")


@pytest.mark.parametrize("how", ["gone", "overdue"])
async def test_the_newest_checkpoint_is_taken(how: str) -> None:
    """By itself, when holders are gone or were waited for long enough; later steps are void."""
    checkpoint = {"path": "runs", "every_steps": 2}
    resilience = {"fault_tolerance": 1, "unreachable_timeout_seconds": 60}
    world, away = await waiting_world(checkpoint=checkpoint, resilience=resilience)
    await world.add_node("n8")
    await world.add_node("n9")
    path = "runs/step-00000002"
    for each in world.agents.values():  # what engines find there
        each.initial_state = InitialState(path=path, step=2, sha256="ab", num_tokens=2)
    assert (await world.job()).step == 4
    for agent in away:
        if how == "gone":
            await world.coordinator.cluster.remove(agent.node_id)
    await world.advance(70 if how == "overdue" else 5)
    job = await world.job()
    assert job.error is None
    assert "job_restored" in world.event_types()
    assert world.run.requirements.init_from == path
    assert json.loads(world.run.requirements.job_spec)["init_from"] == path
    assert (job.state, job.step) == (JobState.RUNNING, 2)
    await world.train(3)
    await world.coordinator.flush()
    metrics = await world.coordinator.jobs.metrics(world.job_id, PageRequest())
    assert (await world.job()).step == 5
    assert [each.step for each in metrics.items] == [0, 1, 2, 3, 4]
    assert [each.generation > 1 for each in metrics.items] == [False, False, True, True, True]


async def test_without_a_checkpoint_it_keeps_waiting() -> None:
    resilience = {"fault_tolerance": 1, "unreachable_timeout_seconds": 0}
    world, away = await waiting_world(resilience=resilience)
    await world.advance(100)
    assert (await world.job()).state is JobState.WAITING
    await bring_back(world, away[1])
    assert (await world.job()).state is JobState.RUNNING


async def test_all_may_be_out_of_reach() -> None:
    """Nobody is left to ask; whoever comes back is compared with the others that do."""
    world = await running_world(resources=PAIRS)
    await world.train(1)
    step = (await world.job()).step
    await world.add_node("n9", "prepare")  # which says that it reaches none of them
    away = [await lose(world, f"n{number}") for number in range(4)]
    await world.advance(15)
    assert (await world.job()).state is JobState.WAITING
    for agent in away[:2]:
        await bring_back(world, agent)
    assert (await world.job()).state is JobState.WAITING
    for agent in away[2:]:
        await bring_back(world, agent)
    job = await world.job()
    assert (job.state, job.step) == (JobState.RUNNING, step)
    await world.train(1)
