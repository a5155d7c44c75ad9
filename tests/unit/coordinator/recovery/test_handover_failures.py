"""Whoever fails while the plan changes is in nobody else's way."""

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.simulation.handover_world import staging_join, switching_join
from unit.coordinator.simulation.world import running_world


async def test_a_joiner_that_dies_during_staging_disturbs_no_engine() -> None:
    world = await running_world(3)
    await staging_join(world)
    generation = world.run.generation
    await world.train()
    await world.kill_node("n9")
    assert "join_cancelled" in world.event_types()
    assert world.run.transition is None
    assert world.run.generation == generation
    await world.train(2)
    assert (await world.job()).step == 4
    assert world.recoveries == []


async def test_the_other_joiner_joins_without_the_one_that_died() -> None:
    world = await running_world(2)
    for node_id in ("n8", "n9"):
        await world.add_node(node_id, "prepare", "stage_plan")
    for node_id in ("n8", "n9"):
        world.agents[node_id].held_kinds.remove("prepare")
        world.agents[node_id].release_kind("prepare")
    await world.settle()
    assert world.phase is Phase.STAGING
    await world.kill_node("n8")
    await world.release()
    await world.train(2)
    (recovery,) = world.recoveries
    assert recovery.nodes_joined == ("n9",)
    assert "recovery_started" not in world.event_types()
    assert len(world.members()) == 3


async def test_a_change_that_cannot_be_staged_is_made_with_engines_parked() -> None:
    """Somebody cannot stage while it trains: the change is made all the same."""
    world = await running_world(3)
    agent = await staging_join(world)
    (directive,) = agent.held
    agent.held.clear()
    failure = Failure(reason=ErrorReason.COPY_FAILED, message="its layers did not come")
    agent.answer(directive, failure)
    await world.settle()
    agent.release()
    assert world.phase is Phase.QUIESCING
    await world.train(2)
    (recovery,) = world.recoveries
    assert recovery.cause == "node_joined"
    assert recovery.nodes_joined == ("n9",)
    assert len(world.members()) == 4
    assert (await world.job()).state is JobState.RUNNING


@pytest.mark.parametrize(("node_id", "is_lost"), [("n1", False), ("n9", True)])
async def test_a_joiner_that_does_not_stage_in_time_is_lost_and_others_are_parked(
    node_id: str, is_lost: bool
) -> None:
    """One that trains may be too busy: all are parked for it. A joining one has no such excuse."""
    world = await running_world(3)
    if node_id == "n9":
        await staging_join(world)
    else:
        world.hold("stage_plan", node_id)
        await world.add_node("n9")
    for _ in range(40):
        await world.train()
        if "engine_lost" in world.event_types() or world.phase is not Phase.STAGING:
            break
    assert ("engine_lost" in world.event_types()) is is_lost
    await world.release()
    await world.train(4)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 4
    assert "recovery_started" not in world.event_types()


async def test_a_loss_during_staging_is_handled_like_any_loss() -> None:
    """And who was to join joins with the plan that follows it [4, 5]."""
    world = await running_world(4, resilience={"fault_tolerance": 2})
    await staging_join(world)
    world.begin_step()
    await world.kill_node("n1")
    assert "step_finished_by" in world.event_types()
    await world.release()
    await world.train(2)
    (recovery,) = world.recoveries
    assert recovery.nodes_lost == ("n1",)
    assert recovery.nodes_joined == ("n9",)
    assert len(world.members()) == 4


async def test_a_loss_while_a_joiner_starts_takes_it_along_when_it_is_ready() -> None:
    world = await running_world(4, resilience={"fault_tolerance": 2})
    await world.add_node("n9", "prepare")
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n1")
    await world.release()
    world.planner.is_open.set()
    await world.train(4)
    joined = [recovery.nodes_joined for recovery in world.recoveries]
    assert ("n9",) in joined
    assert len(world.members()) == 4


@pytest.mark.parametrize("num_passed", [0, 1, 3, 4])
@pytest.mark.parametrize("lost", ["n1", "n9"])
async def test_reports_tell_which_plan_is_in_force(num_passed: int, lost: str) -> None:
    """Some had passed the commit behind which the plan changes, or nobody had [2]."""
    world = await running_world(4, resilience={"fault_tolerance": 2})
    await switching_join(world)
    members = world.begin_step()
    members.sort(key=lambda engine: "/n1/" in engine.id)  # who is lost passes last
    world.pass_exchange(members[:num_passed])
    await world.kill_node(lost)
    steps = {engine.committed_steps for engine in world.engines().values() if engine.active}
    assert steps == {2 if num_passed else 1}
    await world.train(3)
    job = await world.job()
    assert job.state is JobState.RUNNING
    assert world.run.candidate is None
    assert len(world.members()) == 4
    assert world.recoveries[-1].nodes_lost == (lost,)


async def test_a_failed_switch_fences_every_engine() -> None:
    """Others may have taken theirs; nobody is lost, and the joiner takes part in the end."""
    world = await running_world(3)
    agent = await staging_join(world)
    world.hold("switch", "n9")
    agent.held_kinds.remove("stage_plan")
    agent.release_kind("stage_plan")
    await world.settle()
    (directive,) = agent.held
    agent.held.clear()
    world.begin_step()
    agent.answer(directive, Failure(reason=ErrorReason.UNAVAILABLE, message="its layers are late"))
    agent.held_kinds.clear()
    await world.settle()
    await world.train(4)
    assert (await world.job()).state is JobState.RUNNING
    assert "engine_lost" not in world.event_types()
    assert len(world.members()) == 4
    idle_seconds = world.recoveries[-1].idle_seconds
    assert idle_seconds is not None
    assert idle_seconds <= 3.0


async def test_a_switch_that_never_comes_about_is_given_up() -> None:
    """An engine that is not heard of any more holds up everybody: then all are asked."""
    world = await running_world(3)
    agent = await staging_join(world)
    agent.held_kinds = {"switch", "quiesce"}
    agent.release_kind("stage_plan")
    await world.settle()
    assert world.phase is Phase.SWITCHING
    for _ in range(90):
        await world.train()
    lost = [event.node_id for event in world.events if event.type == "engine_lost"]
    assert lost == ["n9"]
    assert (await world.job()).state is JobState.RUNNING
