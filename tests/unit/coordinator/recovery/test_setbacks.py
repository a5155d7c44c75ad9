"""What goes wrong though there are nodes and state is tried again, after ever longer pauses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job import decide
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import JobFaulted
from planaria_coordinator.domain.job.waiting import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from planaria_coordinator.domain.placement import choose_plan
from planaria_coordinator.domain.placement.plan import plan_problem
from planaria_coordinator.domain.recovery import lost_engines
from planaria_coordinator.domain.recovery.fencing import fence_reported
from unit.coordinator.simulation.world import World, running_world


def times(num_times: int, instead: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """Return a function that does something else for the first few times."""
    calls = 0

    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        return (instead if calls <= num_times else function)(*arguments, **keywords)

    return call


def defect(*_arguments: Any, **_keywords: Any) -> None:
    raise ZeroDivisionError("a defect")


def nonsense(*_arguments: Any, **_keywords: Any) -> str:
    return "layer 3 is missing"


def waiting_reasons(world: World) -> list[str]:
    return [event.message for event in world.events if event.type == "job_waiting"]


async def two_pipelines() -> World:
    """n0 and n2 have the first half of the layers, n1 and n3 the second."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    await world.train(2)
    return world


async def break_both(world: World, seconds: float) -> None:
    """No pipeline is healthy: everybody is parked until there is a plan."""
    agents = [world.agents.pop(node_id) for node_id in ("n0", "n3")]
    dead = [engine_id for agent in agents for engine_id in agent.engines]
    for agent in agents:
        agent.disconnect()
    for engine_id in dead:
        world.tell_peer_lost(engine_id)
    await world.settle()
    await world.advance(seconds)


async def test_a_planner_that_is_wrong_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one of several may be right, or the same one after it was mended."""
    world = await two_pipelines()
    wrong = times(2, nonsense, plan_problem)
    monkeypatch.setattr(choose_plan, "plan_problem", wrong)
    await break_both(world, 10)
    assert waiting_reasons(world) == [
        "the job waits: the planner is wrong: layer 3 is missing; it tries again by itself"
    ]
    assert (await world.job()).state is JobState.RUNNING
    assert world.recoveries[-1].nodes_lost == ("n0", "n3")
    await world.train(2)
    assert world.run.setback is None


async def test_a_plan_that_is_refused_once_a_job_has_trained_is_asked_for_again() -> None:
    """Its state is there; what the planner says of it may change with its nodes."""
    world = await two_pipelines()
    world.planner.error = PlanariaError(ErrorReason.MODEL_DOES_NOT_FIT, "too large", {})
    await break_both(world, 5)
    assert (await world.job()).state is JobState.WAITING
    assert "too large" in (await world.job()).waiting_reason
    world.planner.error = None
    await world.advance(10)
    assert (await world.job()).state is JobState.RUNNING


@pytest.mark.parametrize("num_times", [1, 3])
async def test_a_defect_in_a_decision_costs_a_fence(
    monkeypatch: pytest.MonkeyPatch, num_times: int
) -> None:
    """The signal is lost, and what it was about is found out again."""
    world = await two_pipelines()
    failing = times(num_times, defect, fence_reported)
    monkeypatch.setattr(decide, "fence_reported", failing)
    await break_both(world, 10)
    assert (await world.job()).state is JobState.RUNNING
    assert world.recoveries[0].nodes_lost == ("n0", "n3")


async def test_a_defect_while_a_job_trains_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unnoticed loss would be worse: everybody is asked."""
    world = await two_pipelines()
    monkeypatch.setattr(lost_engines, "node_lost", times(1, defect, lost_engines.node_lost))
    await break_both(world, 10)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 2


async def test_what_may_heal_does_not_end_a_job() -> None:
    """Data that cannot be read at the moment: the state is kept, and the step tried again."""
    world = await running_world(3)
    failure = Failure(reason=ErrorReason.DATA_UNUSABLE, message="the disk is away", metadata={})
    engine = world.members()[0]
    actor = world.coordinator._state.actors[world.job_id]
    await actor.post(JobFaulted(engine_id=engine.id, failure=failure))
    await world.settle()
    assert (await world.job()).state is JobState.WAITING
    assert "the disk is away" in (await world.job()).waiting_reason
    await world.advance(3)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 3


async def test_pauses_double_until_a_step_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await two_pipelines()
    monkeypatch.setattr(choose_plan, "plan_problem", nonsense)
    await break_both(world, 3)
    pauses = []
    for _ in range(10):
        setback = world.run.setback
        assert setback is not None
        assert setback.retry_seconds is not None
        pauses.append(setback.retry_seconds - world.clock.monotonic())
        await world.advance(LONGEST_PAUSE_SECONDS + 1, tick_seconds=0.5)
    assert FIRST_PAUSE_SECONDS < max(pauses) <= LONGEST_PAUSE_SECONDS
    assert (await world.job()).state is JobState.WAITING


async def test_a_pause_and_an_end_are_possible_while_a_job_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_pipelines()
    monkeypatch.setattr(choose_plan, "plan_problem", partial(nonsense))
    await break_both(world, 3)
    assert (await world.coordinator.jobs.pause(world.job_id)).state is JobState.PAUSED
    await world.coordinator.jobs.resume(world.job_id)
    await world.advance(3)
    assert (await world.job()).state is JobState.WAITING
    assert (await world.coordinator.jobs.cancel(world.job_id)).state is JobState.CANCELLED
