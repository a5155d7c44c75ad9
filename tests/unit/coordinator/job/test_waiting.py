"""A job that waits says for what: in what is read of it, and in one event for each reason."""

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from planaria_coordinator.application.ports import NodesDecision, NodesQuestion
from planaria_coordinator.application.scheduling.policy import BuiltInPolicy
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.recovery.transition import (
    Cause,
    Phase,
    Transition,
    TransitionHistory,
)
from unit.coordinator.protocol.cluster import first_run
from unit.coordinator.protocol.engine_state import NOON
from unit.coordinator.simulation.job_documents import job_document
from unit.coordinator.simulation.world import World, running_world

IN_THREES = {
    "resilience": {"fault_tolerance": 0},
    "resources": {"min_nodes": 3, "min_nodes_per_pipeline": 3},
}
TWO_OF_THREE = "2 of 3 nodes are free (1 replica of 3 nodes)"


def told(world: World) -> list[str]:
    waiting = ("job_pending", "job_waiting")
    return [event.message for event in world.events if event.type in waiting]


async def state_and_reason(world: World) -> tuple[JobState, str]:
    job = await world.job()
    return job.state, job.waiting_reason


async def pending_world() -> World:
    world = World()
    await world.start(2)
    await world.submit(**IN_THREES)
    return world


async def waiting_world() -> World:
    """Two of four nodes are left, with every layer; the planner wants three."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    world.planner.min_size = 3
    await lose(world, "n0", "n3")  # a half of either pipeline
    return world


async def lose(world: World, *node_ids: str) -> None:
    """They are gone without a word, all at once, until their leases have run out."""
    for node_id in node_ids:
        world.agents.pop(node_id).disconnect()
    await world.advance(12)


async def test_a_pending_job_says_for_what_it_waits_until_it_starts() -> None:
    world = await pending_world()
    assert await state_and_reason(world) == (JobState.PENDING, TWO_OF_THREE)
    await world.add_node("n2", "prepare")
    assert await state_and_reason(world) == (JobState.STARTING, "")
    world.agents["n2"].release()
    await world.settle()
    assert await state_and_reason(world) == (JobState.RUNNING, "")
    assert told(world) == [f"the job waits: {TWO_OF_THREE}"]


async def test_nodes_that_come_and_go_before_it_runs_are_no_news() -> None:
    world = await pending_world()
    for node_id in ("n2", "n3"):
        await world.add_node(node_id, "prepare")
        assert (await world.job()).state is JobState.STARTING
        await lose(world, node_id)
        assert await state_and_reason(world) == (JobState.PENDING, TWO_OF_THREE)
    assert told(world) == [f"the job waits: {TWO_OF_THREE}"]


async def test_another_reason_is_news() -> None:
    world = await pending_world()
    await lose(world, "n1")
    one = "1 of 3 nodes is free (1 replica of 3 nodes)"
    assert await state_and_reason(world) == (JobState.PENDING, one)
    assert told(world) == [f"the job waits: {reason}" for reason in (TWO_OF_THREE, one)]


async def test_a_job_that_asks_for_more_nodes_than_its_replicas_take_says_so() -> None:
    world = World()
    await world.start(2)
    await world.submit(resources={"min_nodes": 5})
    expected = "2 of 5 nodes are free (resources.min_nodes)"
    assert await state_and_reason(world) == (JobState.PENDING, expected)


async def test_a_job_whose_plan_was_refused_waits_for_one_node_more() -> None:
    """Its memory may need more nodes than are asked for: the number that is told is explained."""
    world = World()
    await world.start(0)
    await world.submit(resilience={"fault_tolerance": 0})
    world.planner.min_size = 3
    await world.add_node("n0")
    expected = "1 of 2 nodes is free (1 replica of 2 nodes)"
    assert await state_and_reason(world) == (JobState.PENDING, expected)


async def test_a_job_that_has_trained_says_how_many_nodes_it_needs_to_go_on() -> None:
    world = await waiting_world()
    assert await state_and_reason(world) == (JobState.WAITING, TWO_OF_THREE)
    before = told(world)
    assert before[-1] == f"the job waits: {TWO_OF_THREE}"
    await world.add_node("n8", "prepare")
    assert await state_and_reason(world) == (JobState.WAITING, "engines start on n8")
    await lose(world, "n8")
    assert await state_and_reason(world) == (JobState.WAITING, TWO_OF_THREE)
    assert told(world) == before
    await world.add_node("n9")
    assert await state_and_reason(world) == (JobState.RUNNING, "")
    assert world.run.waiting_reason == "", "the next time it is reported again"


async def test_an_engine_that_starts_while_the_planner_refuses_a_plan_without_it_is_used() -> None:
    """Guard: nothing else would happen any more, and three nodes are what it takes."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    await world.add_node("n9", "prepare")
    world.planner.min_size = 3
    world.planner.is_open.clear()
    await lose(world, "n0", "n3")
    world.agents["n9"].release()
    await world.settle()
    world.planner.is_open.set()
    await world.settle()
    assert world.run.state is JobState.RUNNING
    assert sorted(member.id.split("/")[1] for member in world.members()) == [
        "n1",
        "n2",
        "n9",
    ]
    assert [each.nodes_joined for each in world.recoveries if each.nodes_joined] == [("n9",)]


@pytest.mark.parametrize(
    "is_away",
    [pytest.param(False, id="engines start"), pytest.param(True, id="no engine starts")],
)
async def test_a_node_whose_loss_is_known_only_when_the_job_waits_is_recorded_as_lost(
    is_away: bool,
) -> None:
    """Its engine was seen to die, and the job waits for nodes since.

    It has another engine started there, unless nobody can be told to.
    """
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    world.planner.min_size = 3
    lost = [world.agents.pop(node_id) for node_id in ("n0", "n3")]  # a half of either pipeline
    for agent in lost:
        agent.held_kinds.add("prepare")
        agent.lose_engine(*agent.engines)
        if is_away:
            agent.disconnect()
    await world.settle()
    assert (await world.job()).state is JobState.WAITING
    assert (world.run.transition is None) is is_away
    assert "node_lost" not in world.event_types()
    for agent in lost:
        agent.disconnect()
    await world.advance(12)
    await world.add_node("n8")
    assert (await world.job()).state is JobState.RUNNING
    (recovery,) = world.recoveries
    assert recovery.nodes_lost == ("n0", "n3")
    assert recovery.cause == "node_lost"


async def test_a_node_that_lives_though_its_engine_died_is_lost_in_a_story_of_its_own() -> None:
    """The job waited for it, and went on with another engine of it."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    world.planner.min_size = 3
    agents = [world.agents[node_id] for node_id in ("n0", "n3")]  # a half of either pipeline
    for agent in agents:
        agent.held_kinds.add("prepare")
        agent.lose_engine(*agent.engines)
    await world.settle()
    assert (await world.job()).state is JobState.WAITING
    world.planner.min_size = 2
    for agent in agents:
        agent.release()
    await world.train(2)
    assert [recovery.nodes_lost for recovery in world.recoveries] == [()]
    await world.kill_node("n0")
    await world.train(2)
    assert [recovery.nodes_lost for recovery in world.recoveries] == [(), ("n0",)]


async def test_losses_while_a_waiting_job_starts_engines_belong_to_one_recovery() -> None:
    """It has lost more nodes since: one recovery tells of all."""
    world = await running_world(6, resources={"min_nodes_per_pipeline": 2})
    world.planner.min_size = 4
    await lose(world, "n0", "n4", "n5")  # one half or the other of each pipeline
    assert (await world.job()).state is JobState.WAITING
    await world.add_node("n8", "prepare")
    world.agents.pop("n2").disconnect()
    await world.advance(12)
    world.agents["n8"].release()
    for node_id in ("n9", "n10"):
        await world.add_node(node_id)
    assert (await world.job()).state is JobState.RUNNING
    (recovery,) = world.recoveries
    assert sorted(recovery.nodes_lost) == ["n0", "n2", "n4", "n5"]
    assert recovery.resume_seconds is not None
    assert recovery.fence_seconds is not None
    assert recovery.fence_seconds < 12 < recovery.resume_seconds
    assert recovery.regrow_seconds == recovery.resume_seconds
    assert recovery.idle_seconds is not None
    assert recovery.idle_seconds > 12


@pytest.mark.parametrize(
    ("state", "cause", "is_told_later"),
    [
        (JobState.WAITING, Cause.NODE_LOST, True),
        (JobState.WAITING, Cause.NODE_JOINED, False),  # it is about nodes that have come
        (JobState.RECOVERING, Cause.NODE_LOST, False),  # it is being told
    ],
)
def test_only_what_a_job_waits_with_is_recorded_when_it_continues(
    state: JobState, cause: Cause, *, is_told_later: bool
) -> None:
    history = TransitionHistory(
        cause=cause,
        start_time=NOON,
        first_open_time=NOON,
        nodes_lost=("n0",),
        nodes_joined=("n1",),
    )
    transition = Transition(
        generation=2, phase=Phase.PREPARING, history=history, open_time=NOON, horizon_seconds=1.0
    )
    run = replace(first_run(1), state=state, transition=transition)
    assert run.unreported_recovery == (replace(history, nodes_joined=()) if is_told_later else None)


async def test_a_job_that_waits_can_be_paused_though_the_nodes_that_were_to_join_are_gone() -> None:
    world = await waiting_world()
    await world.add_node("n8", "prepare")
    await world.coordinator.jobs.pause(world.job_id)
    await lose(world, "n8")
    assert (await world.job()).state is JobState.PAUSED


async def test_a_paused_job_waits_for_nothing() -> None:
    world = await pending_world()
    await world.coordinator.jobs.pause(world.job_id)
    await world.settle()
    assert await state_and_reason(world) == (JobState.PAUSED, "")
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    assert await state_and_reason(world) == (JobState.PENDING, TWO_OF_THREE)


class Undecided(BuiltInPolicy):
    """A scheduler that says something else each time."""

    def __init__(self) -> None:
        self.reasons = (f"reason {number}" for number in count(1))

    async def choose_nodes(self, question: NodesQuestion) -> NodesDecision:
        return NodesDecision(node_ids=(), reason=next(self.reasons))


async def test_a_scheduler_is_not_asked_again_because_of_what_it_has_said() -> None:
    world = World()
    world.policy = Undecided()
    world.coordinator = world._new_coordinator()
    await world.start(2)
    await world.submit()
    state, reason = await state_and_reason(world)
    assert (state, told(world)[-1]) == (JobState.PENDING, f"the job waits: {reason}")
    assert len(told(world)) < 5, "a round for each thing that has changed, and no more"


class Slow(BuiltInPolicy):
    """A scheduler that thinks about its first job until it is told to answer."""

    def __init__(self, *, gives_nodes: bool) -> None:
        self.gives_nodes = gives_nodes
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def choose_nodes(self, question: NodesQuestion) -> NodesDecision:
        if self.may_answer.is_set():
            return await super().choose_nodes(question)
        self.is_asked.set()
        await self.may_answer.wait()
        nodes = question.candidates if self.gives_nodes else ()
        return NodesDecision(node_ids=tuple(node.id for node in nodes), reason="after long thought")


@pytest.mark.parametrize("gives_nodes", [False, True])
async def test_a_job_cancelled_during_scheduling_delays_no_other_job(
    gives_nodes: bool,
) -> None:
    """Guard: `_grant` and `_explain` look again whether anybody would answer."""
    world = World()
    world.policy = policy = Slow(gives_nodes=gives_nodes)
    world.coordinator = world._new_coordinator()
    await world.start(2)
    cancelled = (await world.coordinator.jobs.create(job_document())).job
    await policy.is_asked.wait()
    await world.coordinator.jobs.cancel(cancelled.id)
    await asyncio.sleep(0)  # its actor ends
    policy.may_answer.set()
    await world.submit()
    assert (await world.job()).state is JobState.RUNNING
