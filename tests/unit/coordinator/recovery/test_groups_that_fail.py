"""Groups that cannot be made, or break, while a step is finished and nobody else is known lost."""

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.application.agents.agent_messages import EngineFault
from planaria_coordinator.domain.engines.directive import Quiesce, QuiesceMode
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.recovery.test_broken_links import (
    STALLED,
    left_out,
    others,
    refuse_what_is_held,
    say,
)
from unit.coordinator.recovery.test_finishing_a_step import pairs


@pytest.mark.parametrize(
    ("node_id", "reason", "kept"),
    [
        pytest.param("n3", ErrorReason.UNAVAILABLE, [5, 8], id="one of the broken pipeline"),
        pytest.param("n1", ErrorReason.UNAVAILABLE, [5, 3], id="one stage of a healthy pipeline"),
        pytest.param("n3", ErrorReason.ENGINE_FAILED, [5], id="a fault of its own"),
    ],
)
async def test_groups_that_cannot_be_made_stop_no_healthy_pipeline(
    node_id: str, reason: ErrorReason, kept: list[int]
) -> None:
    """Usually another loss follows; if not, all begin again [8]."""
    world = await pairs()
    world.begin_step()
    agent = world.agents[node_id]
    agent.held_kinds.add("activate")
    await world.kill_node("n0")
    for _ in range(2):
        world.clock.advance(0.5)
        (directive,) = agent.held
        agent.held.clear()
        agent.answer(directive, Failure(reason=reason, message="no groups"))
        await world.settle()
    told = [e.details["kept_microbatches"] for e in world.events if e.type == "step_finished_by"]
    assert told == kept
    agent.release()
    await world.settle()
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert [r.nodes_lost for r in world.recoveries] == [("n0",)]


async def test_without_a_step_to_finish_no_engine_continues_without_groups() -> None:
    """With no pipeline left whole all take new places, and nobody computes."""
    world = await pairs(4)
    world.begin_step()
    agent = world.agents["n1"]
    await world.kill_node("n0")
    agent.held_kinds.add("activate")
    await world.kill_node("n3")
    (directive,) = agent.held
    agent.held.clear()
    agent.held_kinds.add("quiesce")
    agent.answer(directive, Failure(reason=ErrorReason.UNAVAILABLE, message="no groups"))
    await world.settle()
    (directive,) = agent.held
    assert isinstance(directive.command, Quiesce)
    assert directive.command.mode is QuiesceMode.IMMEDIATE


async def test_healthy_pipelines_compute_while_groups_are_rebuilt() -> None:
    """That time was lost for the others only [9]."""
    world = await pairs()
    before = (await world.job()).time_seconds
    world.begin_step()
    agent = world.agents["n3"]
    agent.held_kinds.add("activate")
    await world.kill_node("n0")
    world.clock.advance(0.5)
    (directive,) = agent.held
    agent.held.clear()
    agent.answer(directive, Failure(reason=ErrorReason.UNAVAILABLE, message="no groups"))
    await world.settle()
    world.clock.advance(0.5)
    agent.release()
    await world.settle()
    grown = (await world.job()).time_seconds
    assert grown["productive"] - before.get("productive", 0.0) == pytest.approx(0.8)


async def test_engines_park_for_a_change_even_if_groups_cannot_be_made() -> None:
    world = await pairs()
    world.begin_step()
    agent = world.agents["n3"]
    agent.held_kinds.add("activate")
    await world.kill_node("n0")
    await world.coordinator.jobs.pause(world.job_id)
    agent.held_kinds.clear()
    (directive,) = agent.held
    agent.held.clear()
    agent.answer(directive, Failure(reason=ErrorReason.UNAVAILABLE, message="no groups"))
    await world.settle()
    assert (await world.job()).state is JobState.PAUSED
    assert (await world.job()).step == 1


async def test_groups_that_break_during_planning_are_rebuilt() -> None:
    """Nobody died, and yet nobody can sum: everyone is collected once more."""
    world = await pairs()
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    engine = world.engine_on("n1")
    fault = EngineFault(
        job_id=engine.job_id,
        engine_id=engine.id,
        generation=engine.active_generation,
        failure=Failure(reason=ErrorReason.UNAVAILABLE, message="a sum broke"),
        fatal=False,
        detect_time=world.clock.now(),
    )
    world.agents["n1"].say(lambda session: session.engine_fault(fault))
    await world.settle()
    world.planner.is_open.set()
    await world.advance(1)
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    (recovery,) = world.recoveries
    assert recovery.nodes_lost == ("n0",)


async def test_whom_nobody_can_connect_to_is_left_out_and_no_other() -> None:
    """Old connections carry on, and groups are needed because somebody else has died."""
    world = await pairs()
    world.begin_step()
    for agent in world.agents.values():
        agent.held_kinds.add("activate")
    await world.kill_node("n0")
    for node_id in others(world, "n2"):
        if node_id != "n0":
            say(world, node_id, ["n2"], STALLED)
    for agent in world.agents.values():
        refuse_what_is_held(agent)
    await world.settle()
    assert left_out(world) == ["n2"]
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert {each.split("/")[1] for each in world.engines()} == {"n1", "n3", "n4", "n5"}
