"""What goes wrong though there are nodes and state is tried again, after ever longer pauses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.engines.directive import Command, Copy, Directive, Export
from planaria_coordinator.domain.engines.outcome import DirectiveResult, Failure
from planaria_coordinator.domain.job import decide
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import JobFaulted
from planaria_coordinator.domain.job.waiting import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from planaria_coordinator.domain.placement import choose_plan
from planaria_coordinator.domain.placement.check_plan import plan_problem
from planaria_coordinator.domain.recovery import lost_engines
from planaria_coordinator.domain.recovery.fencing import fence_reported
from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.engine import SimEngine
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


async def test_a_node_that_alone_cannot_read_its_data_is_done_without() -> None:
    """The others train on; a node that holds the only replica of a layer is never refused."""
    world = await running_world(4)
    actor = world.coordinator._state.actors[world.job_id]
    failure = Failure(reason=ErrorReason.DATA_UNUSABLE, message="the disk is away", metadata={})
    for _ in range(3):
        engine = next(each for each in world.members() if each.id.split("/")[1] == "n0")
        await actor.post(JobFaulted(engine_id=engine.id, failure=failure))
        await world.advance(10)
    assert (await world.job()).state is JobState.RUNNING
    assert world.run.refused == {"n0": "the disk is away"}
    assert len(world.members()) == 3


async def test_a_fault_while_engines_activate_is_not_lost() -> None:
    world = await two_pipelines()
    world.hold("activate", "n2")
    await break_both(world, 0.5)
    assert world.phase is Phase.ACTIVATING
    engine = world.engine_on("n1")
    failure = Failure(reason=ErrorReason.DATA_UNUSABLE, message="the disk is away", metadata={})
    actor = world.coordinator._state.actors[world.job_id]
    await actor.post(JobFaulted(engine_id=engine.id, failure=failure))
    await world.release()
    assert (await world.job()).state is JobState.WAITING
    assert "the disk is away" in (await world.job()).waiting_reason
    await world.advance(5)
    assert (await world.job()).state is JobState.RUNNING


def full_disk(engine: SimEngine, command: Command) -> Any:
    if isinstance(command, Export):
        return Failure(reason=ErrorReason.OUTPUT_FAILED, message="no space left", metadata={})
    return END_OF_JOB(engine, command)


END_OF_JOB = SimEngine._end_of_job


async def finished_world(monkeypatch: pytest.MonkeyPatch) -> World:
    """All steps are committed, and the output cannot be written."""
    monkeypatch.setattr(SimEngine, "_end_of_job", full_disk)
    world = await running_world(3, training={"steps": 3}, output={"path": "out/model"})
    await world.train(3)
    await world.advance(5)
    assert (await world.job()).state is JobState.WAITING
    assert "no space left" in (await world.job()).waiting_reason
    return world


async def test_an_output_is_written_as_soon_as_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await finished_world(monkeypatch)
    monkeypatch.setattr(SimEngine, "_end_of_job", END_OF_JOB)
    await world.advance(90)
    assert (await world.job()).state is JobState.SUCCEEDED
    assert (await world.job()).step == 3


async def test_a_pause_is_possible_while_an_output_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither it nor the tries go on in a loop."""
    world = await finished_world(monkeypatch)
    await world.coordinator.jobs.pause(world.job_id)
    await world.advance(10)
    assert (await world.job()).state is JobState.PAUSED
    generation = world.run.generation
    await world.advance(10)
    assert world.run.generation == generation
    monkeypatch.setattr(SimEngine, "_end_of_job", END_OF_JOB)
    await world.coordinator.jobs.resume(world.job_id)
    await world.advance(90)
    assert (await world.job()).state is JobState.SUCCEEDED


async def test_a_pause_that_is_wanted_during_a_failing_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimEngine, "_end_of_job", full_disk)
    world = await running_world(3, training={"steps": 3}, output={"path": "out/model"})
    world.hold("export")
    await world.train(3)
    await world.coordinator.jobs.pause(world.job_id)
    await world.release()
    await world.advance(5)
    assert (await world.job()).state is JobState.PAUSED
    assert world.run.generation < 10


async def test_a_refused_drain_is_tried_less_and_less_often() -> None:
    world = await running_world(4)
    world.planner.error = PlanariaError(ErrorReason.INTERNAL, "no plan without it", {})
    before = world.run.generation
    await world.coordinator.cluster.drain("n1")
    for _ in range(60):
        await world.train()
        await world.advance(1)
    assert (await world.job()).state is JobState.RUNNING
    assert world.run.generation - before < 12


@pytest.mark.parametrize("num_nodes", [2, 4])
async def test_an_initial_state_that_no_node_can_read_fails_the_job(
    monkeypatch: pytest.MonkeyPatch, num_nodes: int
) -> None:
    unreadable = Failure(reason=ErrorReason.INIT_UNUSABLE, message="it is damaged", metadata={})
    hear = SimAgent.carry_out

    def refuse_copies(agent: SimAgent, directive: Directive) -> None:
        if not isinstance(directive.command, Copy):
            hear(agent, directive)
        elif agent.session is not None:
            agent.session.result(
                DirectiveResult(
                    directive_id=directive.id, job_id=directive.job_id, outcome=unreadable
                )
            )

    monkeypatch.setattr(SimAgent, "carry_out", refuse_copies)
    world = World()
    await world.start(num_nodes)
    await world.submit(resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 0})
    await world.advance(30)
    job = await world.job()
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.reason is ErrorReason.INIT_UNUSABLE
