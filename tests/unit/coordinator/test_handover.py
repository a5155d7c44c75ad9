"""The plan changes behind a commit: nobody stands still, and nothing that fails is in the way."""

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.directive import Failure
from planaria_coordinator.domain.job import JobState
from planaria_coordinator.domain.run import Phase
from unit.coordinator.sim_agent import SimAgent
from unit.coordinator.sim_engine import SimEngine
from unit.coordinator.simulation import World, running_world


def engine_on(world: World, node_id: str) -> SimEngine:
    return next(iter(world.agents[node_id].engines.values()))


def phase_of(world: World) -> Phase | None:
    return world.run.transition.phase if world.run.transition is not None else None


def hold(world: World, kind: str, *node_ids: str) -> None:
    for node_id in node_ids or tuple(world.agents):
        world.agents[node_id].held_kinds.add(kind)


async def release(world: World) -> None:
    for agent in world.agents.values():
        agent.release()
    await world.settle()


async def staging_join(world: World) -> SimAgent:
    """n9 is to join, and its place cannot be made ready yet."""
    agent = await world.add_node("n9", "activate")
    assert phase_of(world) is Phase.STAGING
    return agent


async def switching_join(world: World) -> SimAgent:
    """n9 is to join, and everybody has been asked to change over."""
    agent = await world.add_node("n9")
    assert phase_of(world) is Phase.SWITCHING
    return agent


# -- nobody stands still -----------------------------------------------------------------------


async def test_a_join_costs_nobody_anything() -> None:
    """The job is running all the while, and its time is productive [8, 9]."""
    world = await running_world(3)
    before = (await world.job()).time_seconds
    await staging_join(world)
    await world.train(3)
    assert (await world.job()).state is JobState.RUNNING
    assert (await world.job()).step == 4
    await release(world)
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)
    job = await world.job()
    assert job.step == 6
    grown = {k for k, seconds in job.time_seconds.items() if seconds > before.get(k, 0.0)}
    assert grown == {"productive"}
    (recovery,) = world.recoveries
    assert (recovery.cause, recovery.nodes_joined) == ("node_joined", ("n9",))
    assert recovery.pause_seconds == 0.0
    assert recovery.lost_accelerator_seconds == {"idle": 0.0, "redone": 0.0}
    assert recovery.copied_bytes == 600
    assert {"plan", "copy", "rebuild", "resume"} == {phase.name for phase in recovery.phases}
    assert len(world.members()) == 4
    await world.stop()


async def test_pipelines_that_stay_as_they_are_keep_what_they_have() -> None:
    """n0-n2 and n1-n3 go on; two joiners make a third pipeline."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    world.planner.appends_joiners = True
    for node_id in ("n8", "n9"):
        await world.add_node(node_id, "prepare")
    await release(world)
    staged = engine_on(world, "n0").staged
    assert staged is not None
    assert [pipeline.keeps_step for pipeline in staged.pipelines] == [True, True, False]
    assert staged.layers == ()
    joining = engine_on(world, "n8").staged
    assert joining is not None
    assert [source.layer for source in joining.layers] == [0, 1, 2]
    await world.train(2)
    assert len(world.members()) == 6
    placement = world.run.placement
    assert placement is not None
    assert placement.first_generations == (1, 1, placement.generation)
    await world.stop()


async def test_a_drained_node_leaves_behind_a_commit() -> None:
    world = await running_world(4)
    await world.coordinator.cluster.drain("n1")
    await world.settle()
    assert phase_of(world) is Phase.SWITCHING
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)
    (recovery,) = world.recoveries
    assert (recovery.cause, recovery.pause_seconds) == ("node_drained", 0.0)
    assert recovery.redone_microbatches == 0
    assert not world.agents["n1"].engines
    assert (await world.job()).step == 3
    await world.stop()


async def left_idle_joiner() -> World:
    """n9 was let in, and with what it measured the planner would not use it any more."""
    world = await running_world(3)
    await world.add_node("n9", "prepare")
    world.planner.uses_joiners = False
    await release(world)
    assert world.event_types()[-1] == "plan_kept"
    world.planner.uses_joiners = True
    return world


async def test_a_joiner_that_the_planner_leaves_idle_changes_nothing() -> None:
    """It is told once, and not let in again and again, whatever the planner thinks of it alone."""
    world = await left_idle_joiner()
    generation = world.run.generation
    await world.train(2)
    await world.crash_coordinator()
    await world.reconnect()
    await world.train(2)
    assert world.run.generation == generation
    assert world.recoveries == []
    assert (await world.job()).step == 5
    await world.stop()


async def test_who_was_left_idle_is_considered_with_the_next_joiner() -> None:
    world = await left_idle_joiner()
    await world.add_node("n8")
    await world.train(2)
    assert len(world.members()) == 5
    assert world.run.left_idle == ()
    await world.stop()


async def test_a_joiner_of_no_use_does_not_have_the_idle_one_offered_again() -> None:
    world = await left_idle_joiner()
    world.planner.avoids = frozenset({"n8"})
    generation = world.run.generation
    await world.add_node("n8")
    await world.train(2)
    assert world.run.generation == generation
    await world.stop()


async def test_who_was_left_idle_is_considered_behind_a_loss() -> None:
    world = await left_idle_joiner()
    await world.kill_node("n0")
    await world.train(3)
    assert {engine.id.split("/")[1] for engine in world.members()} == {"n1", "n2", "n9"}
    await world.stop()


async def test_who_was_left_idle_is_considered_when_a_node_is_drained() -> None:
    world = await left_idle_joiner()
    await world.coordinator.cluster.drain("n0")
    await world.settle()
    await world.train(3)
    assert {engine.id.split("/")[1] for engine in world.members()} == {"n1", "n2", "n9"}
    await world.stop()


async def test_who_was_left_idle_and_was_lost_joins_afresh() -> None:
    world = await left_idle_joiner()
    await world.kill_node("n9")
    await world.advance(20)
    await world.add_node("n9")
    await world.train(2)
    assert len(world.members()) == 4
    await world.stop()


async def test_a_joiner_that_no_plan_can_be_made_with_is_left_idle() -> None:
    """The planner refuses it with what was measured on it: who trains need not suffer."""
    world = await running_world(3)
    await world.add_node("n9", "prepare")
    world.planner.error = PlanariaError(ErrorReason.MODEL_DOES_NOT_FIT, "n9 is too small", {})
    await release(world)
    assert world.event_types()[-1] == "plan_kept"
    world.planner.error = None
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 3
    await world.stop()


# -- what fails beside training ----------------------------------------------------------------


async def test_a_joiner_that_dies_while_its_place_is_made_ready_disturbs_nobody() -> None:
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
    await world.stop()


async def test_the_other_joiner_joins_without_the_one_that_died() -> None:
    world = await running_world(2)
    for node_id in ("n8", "n9"):
        await world.add_node(node_id, "prepare", "activate")
    for node_id in ("n8", "n9"):
        world.agents[node_id].held_kinds.remove("prepare")
        world.agents[node_id].release_kind("prepare")
    await world.settle()
    assert phase_of(world) is Phase.STAGING
    await world.kill_node("n8")
    await release(world)
    await world.train(2)
    (recovery,) = world.recoveries
    assert recovery.nodes_joined == ("n9",)
    assert "recovery_started" not in world.event_types()
    assert len(world.members()) == 3
    await world.stop()


async def test_a_place_that_cannot_be_made_ready_is_taken_standing_still() -> None:
    """Somebody cannot do it beside training: the change is made all the same."""
    world = await running_world(3)
    agent = await staging_join(world)
    (directive,) = agent.held
    agent.held.clear()
    failure = Failure(reason=ErrorReason.COPY_FAILED, message="its layers did not come")
    agent.answer(directive, failure)
    await world.settle()
    agent.release()
    assert phase_of(world) is Phase.QUIESCING
    await world.train(2)
    (recovery,) = world.recoveries
    assert recovery.cause == "node_joined"
    assert recovery.nodes_joined == ("n9",)
    assert len(world.members()) == 4
    assert (await world.job()).state is JobState.RUNNING
    await world.stop()


@pytest.mark.parametrize(("node_id", "is_lost"), [("n1", False), ("n9", True)])
async def test_who_makes_no_place_ready_in_time(node_id: str, is_lost: bool) -> None:
    """One that trains may be too busy: all stand still for it. A joiner has no such excuse."""
    world = await running_world(3)
    if node_id == "n9":
        await staging_join(world)
    else:
        hold(world, "activate", node_id)
        await world.add_node("n9")
    for _ in range(40):
        await world.train()
        if "engine_lost" in world.event_types() or phase_of(world) is not Phase.STAGING:
            break
    assert ("engine_lost" in world.event_types()) is is_lost
    await release(world)
    await world.train(4)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 4
    assert "recovery_started" not in world.event_types()
    await world.stop()


async def test_a_loss_while_places_are_made_ready_is_met_as_any_loss() -> None:
    """And who was to join joins with the plan that follows it [4, 5]."""
    world = await running_world(4, resilience={"fault_tolerance": 2})
    await staging_join(world)
    world.begin_step()
    await world.kill_node("n1")
    assert "step_finished_by" in world.event_types()
    await release(world)
    await world.train(2)
    (recovery,) = world.recoveries
    assert recovery.nodes_lost == ("n1",)
    assert recovery.nodes_joined == ("n9",)
    assert len(world.members()) == 4
    await world.stop()


async def test_a_loss_while_a_joiner_starts_takes_it_along_when_it_is_ready() -> None:
    world = await running_world(4, resilience={"fault_tolerance": 2})
    await world.add_node("n9", "prepare")
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n1")
    await release(world)
    world.planner.is_open.set()
    await world.train(4)
    joined = [recovery.nodes_joined for recovery in world.recoveries]
    assert ("n9",) in joined
    assert len(world.members()) == 4
    await world.stop()


# -- what fails while all change over ----------------------------------------------------------


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
    steps = {engine.committed_steps for engine in world.engines().values() if engine.place}
    assert steps == {2 if num_passed else 1}
    await world.train(3)
    job = await world.job()
    assert job.state is JobState.RUNNING
    assert world.run.candidate is None
    assert len(world.members()) == 4
    assert world.recoveries[-1].nodes_lost == (lost,)
    await world.stop()


async def test_a_place_that_cannot_be_taken_has_everyone_asked() -> None:
    """Others may have taken theirs; nobody is lost, and the joiner takes part in the end."""
    world = await running_world(3)
    agent = await staging_join(world)
    hold(world, "switch", "n9")
    agent.held_kinds.remove("activate")
    agent.release_kind("activate")
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
    assert world.recoveries[-1].pause_seconds <= 3.0
    await world.stop()


async def test_a_switch_that_never_comes_about_is_given_up() -> None:
    """An engine that is not heard of any more holds up everybody: then all are asked."""
    world = await running_world(3)
    agent = await staging_join(world)
    agent.held_kinds = {"switch", "quiesce"}
    agent.release_kind("activate")
    await world.settle()
    assert phase_of(world) is Phase.SWITCHING
    for _ in range(90):
        await world.train()
    lost = [event.node_id for event in world.events if event.type == "engine_lost"]
    assert lost == ["n9"]
    assert (await world.job()).state is JobState.RUNNING
    await world.stop()


# -- what the coordinator itself does ----------------------------------------------------------


async def test_a_coordinator_that_comes_back_while_places_are_made_ready_begins_again() -> None:
    """Nobody was asked to change over: nobody is disturbed [7]."""
    world = await running_world(3)
    agent = await staging_join(world)
    await world.crash_coordinator()
    await world.reconnect()
    agent.release()
    await world.settle()
    await world.train(2)
    assert "recovery_started" not in world.event_types()
    assert "fence_complete" not in world.event_types()
    (recovery,) = world.recoveries
    assert (recovery.nodes_joined, recovery.pause_seconds) == (("n9",), 0.0)
    await world.stop()


@pytest.mark.parametrize("num_passed", [0, 2, 3])
async def test_a_coordinator_that_comes_back_while_all_change_over_asks_them(
    num_passed: int,
) -> None:
    """Some had changed over, or all, or nobody: the engines know [7]."""
    world = await running_world(3)
    await switching_join(world)
    members = world.begin_step()
    for agent in world.agents.values():
        agent.disconnect()
    world.pass_exchange(members[:num_passed])
    await world.crash_coordinator()
    await world.reconnect()
    await world.train(3)
    job = await world.job()
    assert job.state is JobState.RUNNING
    assert len(world.members()) == 4
    assert world.recoveries[-1].nodes_joined == ("n9",)
    assert world.recoveries[-1].redone_microbatches == 0
    await world.stop()


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.SWITCHING])
async def test_a_pause_is_not_held_up_by_a_change(phase: Phase) -> None:
    world = await running_world(3)
    await (staging_join if phase is Phase.STAGING else switching_join)(world)
    await world.coordinator.jobs.pause(world.job_id)
    await release(world)
    await world.train(2)
    assert (await world.job()).state is JobState.PAUSED
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    await world.train(2)
    assert len(world.members()) == 4
    await world.stop()


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.SWITCHING])
async def test_the_last_step_needs_no_change(phase: Phase) -> None:
    world = await running_world(3, training={"steps": 2})
    await (staging_join if phase is Phase.STAGING else switching_join)(world)
    await world.train()
    await release(world)
    job = await world.job()
    assert (job.state, job.step) == (JobState.SUCCEEDED, 2)
    await world.stop()


# -- what is counted ---------------------------------------------------------------------------


async def test_only_the_share_of_those_who_stood_still_is_lost() -> None:
    """Four of five engines compute while the fifth waits: a fifth of that time is lost [9]."""
    world = await running_world(6, resources={"min_nodes_per_pipeline": 2})
    world.begin_step()
    hold(world, "quiesce", "n4")
    await world.kill_node("n0")
    before = (await world.job()).time_seconds
    await world.advance(2.0)
    await release(world)
    after = (await world.job()).time_seconds
    lost = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after}
    assert lost["quiesce"] == pytest.approx(0.4)
    assert lost["productive"] == pytest.approx(1.6)
    await world.stop()
