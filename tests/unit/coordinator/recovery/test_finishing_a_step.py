"""A loss in the middle of a step: healthy pipelines finish it, the others are assigned after it."""

from dataclasses import replace

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.engines.directive import Activate
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.decide import decide
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import Limits, Moment
from planaria_coordinator.domain.job.signals import NodeLost
from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.simulation.world import World, running_world


async def pairs(num_nodes: int = 6, **changes: object) -> World:
    """Pipelines of two nodes: n0-n3, n1-n4, n2-n5."""
    return await running_world(num_nodes, resources={"min_nodes_per_pipeline": 2}, **changes)


async def test_only_broken_pipelines_stop_and_are_assigned_after_the_step() -> None:
    """One loss, two generations, one story [1, 2, 8, 9]."""
    world = await pairs()
    world.clock.advance(0.5)
    world.begin_step()
    world.agents["n1"].held_kinds.add("activate")
    await world.kill_node("n0")
    world.clock.advance(0.25)
    world.agents["n1"].release()
    await world.settle()

    assert (await world.job()).state is JobState.RECOVERING
    assert world.recoveries == []
    place = world.engine_on("n1").active
    assert isinstance(place, Activate)
    assert [f.engine_id for f in place.followers] == [world.engine_on("n3").id]
    assert [p.keeps_step for p in place.pipelines] == [True, True]
    assert sorted(m for p in place.pipelines for m in p.step_microbatches) == list(range(8))
    assert world.engine_on("n1").gradients == {1, 4, 7}
    assert world.engine_on("n3").gradients == set()

    world.clock.advance(2.0)
    await world.train()
    job = await world.job()
    assert (job.state, job.step) == (JobState.RUNNING, 2)
    assert len(world.members()) == 5
    assert not any(e.active and e.active.followers for e in world.members())
    (recovery,) = world.recoveries
    assert recovery.cause == "node_lost"
    assert recovery.detect_seconds == recovery.fence_seconds == 0.0
    assert recovery.resume_seconds == pytest.approx(0.25)
    assert recovery.regrow_seconds == pytest.approx(3.25)
    assert recovery.idle_seconds == 0.0
    assert recovery.hit_step == 1
    assert (recovery.end_time - recovery.start_time).total_seconds() == pytest.approx(3.25)
    assert recovery.lost_accelerator_seconds["idle"] == pytest.approx(3.25)
    assert recovery.lost_accelerator_seconds["redone"] == 1.0
    assert recovery.redone_microbatches == 3
    assert (recovery.pipeline_sizes_before, recovery.pipeline_sizes_after) == ((2, 2, 2), (3, 2))
    (end,) = [e for e in world.events if e.type == "recovery_finished"]
    assert end.message.endswith(
        "in 1 pipeline of 3 nodes, 1 of 2 instead of 3 pipelines of 2 nodes: detect 0.000 s, "
        "fence 0.000 s, resume 0.250 s, regrow 3.250 s after the fault, idle 0.000 s"
    )
    (copied,) = [e.message for e in world.events if e.type == "layers_copied"]
    assert "B of parameters and optimizer state copied to" in copied
    names = [phase.name for phase in recovery.phases]
    assert len(names) == len(set(names))
    assert {"quiesce", "plan", "rebuild", "activate", "copy"} <= set(names)
    told = [e.message for e in world.events if e.type == "step_finished_by"]
    assert told == [
        "step 1 is finished by 2 pipelines of 2 nodes: 5 of 8 microbatches kept, "
        "3 given to other pipelines"
    ]
    totals = (await world.job()).time_seconds
    wall_seconds = (world.clock.now() - job.create_time).total_seconds()
    assert sum(totals.values()) == pytest.approx(wall_seconds)


async def test_without_a_measured_or_predicted_step_an_engine_has_time_for_its_pass() -> None:
    """A custom scheduler predicts nothing, and a node is lost in the first step."""
    world = World()
    world.planner.predicts = False
    await world.start(6)
    await world.submit(resources={"min_nodes_per_pipeline": 2})
    world.begin_step()
    world.agents["n1"].held_kinds.add("activate")
    late = world.engine_on("n1").id
    await world.kill_node("n0")
    await world.advance(Limits().at_commit_seconds)
    assert late in world.run.engines
    world.agents["n1"].release()
    await world.settle()
    await world.train()
    assert (await world.job()).step == 1


async def test_stopping_after_the_step_delays_the_regrowth() -> None:
    """The fault took 0 s, and an assignment could not be staged."""
    world = await pairs()
    agent = world.agents["n1"]
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    agent.held_kinds.update(("stage_plan", "activate"))
    world.planner.is_open.set()
    await world.settle()
    (directive,) = agent.held
    agent.held.clear()
    agent.answer(directive, Failure(reason=ErrorReason.COPY_FAILED, message="no layers"))
    await world.settle()
    world.clock.advance(2.0)
    await world.train()
    assert agent.held
    world.clock.advance(0.25)
    agent.release()
    await world.settle()
    (recovery,) = world.recoveries
    assert recovery.idle_seconds == 0.0, "all but one have their assignments at once"
    assert recovery.regrow_seconds is not None
    assert recovery.regrow_seconds > 2.0


async def test_the_second_change_waits_for_the_planner_while_training_goes_on() -> None:
    """A planner that is slow, or away, stops nobody [8, 10]."""
    world = await pairs()
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    assert world.phase is Phase.PLANNING
    world.planner.is_open.set()
    world.planner.error = PlanariaError(ErrorReason.UNAVAILABLE, "no planner", {})
    for _ in range(3):
        world.clock.advance(1.0)
        world.pass_exchange(world.begin_step())
    assert {e.committed_steps for e in world.members()} == {4}
    world.planner.error = None
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.recoveries) == 1


async def test_the_planner_is_asked_once_and_before_anyone_has_reported() -> None:
    world = await pairs()
    world.hold("quiesce")
    num_queries = len(world.planner.queries)
    world.begin_step()
    await world.kill_node("n0")
    assert len(world.planner.queries) == num_queries + 1
    assert world.planner.queries[-1].current is not None
    assert world.planner.queries[-1].current.sizes == (2, 2, 2)
    await world.release()
    await world.train()
    assert len(world.recoveries) == 1
    # Scheduling looks for nodes to grow by; the recovery itself asks nothing more.
    asked = [q for q in world.planner.queries[num_queries + 1 :] if q.current is not None]
    assert all(q.current is not None and q.current.sizes == (3, 2) for q in asked)


@pytest.mark.parametrize("node_id", ["n1", "n3", "n5"])
async def test_another_loss_while_the_step_is_finished_keeps_healthy_pipelines(
    node_id: str,
) -> None:
    """A keeper or a follower: the newest generation wins, and the story goes on [4, 5]."""
    world = await pairs(resilience={"fault_tolerance": 2})
    world.begin_step()
    await world.kill_node("n0")
    world.begin_step()
    await world.kill_node(node_id)
    told = [e.details for e in world.events if e.type == "step_finished_by"]
    assert len(told) == 2
    assert told[1]["kept_microbatches"] == {"n1": 3, "n3": 8, "n5": 5}[node_id]
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    (recovery,) = world.recoveries
    assert recovery.nodes_lost == ("n0", node_id)


async def test_an_activate_that_only_one_engine_of_a_pipeline_got_breaks_the_pipeline() -> None:
    """It has promised one exchange more than its neighbour: the count would not come out even."""
    world = await pairs(resilience={"fault_tolerance": 2})
    world.begin_step()
    world.agents["n4"].held_kinds.add("activate")
    await world.kill_node("n0")
    await world.kill_node("n3")
    told = [e.details for e in world.events if e.type == "step_finished_by"]
    assert [d["kept_microbatches"] for d in told] == [5, 3]
    assert told[1]["followers"] == sorted(world.engine_on(n).id for n in ("n1", "n4"))
    world.agents["n4"].release()
    await world.settle()
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING


async def test_pipelines_one_step_behind_roll_forward_and_run_the_next_step() -> None:
    """The witness comes first; then everyone computes its share of the new step [2]."""
    world = await pairs()
    world.begin_step()
    world.pass_exchange([world.engine_on("n1"), world.engine_on("n4")])
    await world.kill_node("n0")
    assert "step_rolled_forward" in world.event_types()
    assert {e.committed_steps for e in world.engines().values()} == {2}
    members = world.begin_step()
    assert len(members) == 5
    world.pass_exchange(members)
    await world.settle()
    assert (await world.job()).state is JobState.RUNNING
    assert world.recoveries[-1].redone_microbatches == 0


async def test_a_pause_requested_while_the_step_is_finished_takes_effect_after_it() -> None:
    world = await pairs()
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    await world.coordinator.jobs.pause(world.job_id)
    await world.settle()
    await world.train(2)
    job = await world.job()
    assert (job.state, job.step) == (JobState.PAUSED, 2)
    assert [recovery.nodes_lost for recovery in world.recoveries] == [("n0",)]
    world.planner.is_open.set()
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    await world.train()
    assert (await world.job()).step == 3


async def test_the_last_step_needs_no_new_plan() -> None:
    """A planner that is away does not keep a job from its end."""
    world = await pairs(training={"steps": 2})
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    await world.train()
    await world.settle()
    assert (await world.job()).state is JobState.SUCCEEDED


@pytest.mark.parametrize("kind", ["quiesce", "roll_forward", "activate", ""])
async def test_a_crash_of_the_coordinator_collects_again_and_keeps_the_step(kind: str) -> None:
    """Whatever was under way, what healthy pipelines have computed stays [7]."""
    world = await pairs()
    world.hold(kind)
    world.begin_step()
    if kind == "roll_forward":
        world.pass_exchange([world.engine_on("n1"), world.engine_on("n4")])
    await world.kill_node("n0")
    await world.crash_coordinator()
    await world.reconnect()
    await world.release()
    told = [e.details for e in world.events if e.type == "step_finished_by"]
    assert told[-1]["kept_microbatches"] == (5 if kind else 8)
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 5
    assert [r.nodes_lost for r in world.recoveries] == [("n0",)]


@pytest.mark.parametrize("has_another", [False, True])
async def test_a_node_is_recorded_as_lost_even_if_its_engine_was_seen_to_die(
    has_another: bool,
) -> None:
    """That it is lost comes when the step is being finished and the next plan is asked for.

    Another engine of it may be about to start.
    """
    world = await pairs()
    world.planner.is_open.clear()
    world.begin_step()
    (engine_id,) = world.agents.pop("n0").engines
    world.tell_peer_lost(engine_id)
    await world.settle()
    assert world.run.transition is not None
    assert world.run.transition.is_online
    now = world.clock.now()
    lost = NodeLost(node_id="n0", fault_time=now, reason="its session ended", gone=True)
    run = world.run
    if has_another:
        another = Engine(id=f"{run.job_id}/n0/0/99", node_id="n0", accelerator=0)
        run = replace(run, engines={**run.engines, another.id: another})
    told = decide(Moment(seconds=0.0, time=now), run, lost, Limits()).run.transition
    assert told is not None
    assert told.history.nodes_lost == ("n0",)


@pytest.mark.parametrize(
    ("has", "lost"),
    [("nothing", [("n0",)]), ("another engine", [()]), ("a place", [(), (), ("n0",)])],
)
async def test_a_node_whose_loss_is_known_only_after_the_recovery_is_recorded_as_lost(
    has: str, lost: list[tuple[str, ...]]
) -> None:
    """Its engine was seen to die; if it has another since, its loss is a new one."""
    world = await pairs()
    world.begin_step()
    agent = world.agents["n0"]
    agent.held_kinds.add("prepare")
    agent.lose_engine(*agent.engines)
    await world.settle()
    await world.train(2)
    assert [recovery.nodes_lost for recovery in world.recoveries] == [()]
    if has == "another engine":
        world.planner.is_open.clear()  # it joins nobody yet
    if has != "nothing":
        agent.release()
        await world.settle()
        await world.train(2)
    world.agents.pop("n0").disconnect()
    for _ in range(6):
        await world.advance(2)
        await world.train(1)
    assert [recovery.nodes_lost for recovery in world.recoveries] == lost
    assert (await world.job()).state is JobState.RUNNING
    world.planner.is_open.set()


async def test_an_engine_that_hangs_while_the_planner_is_away_is_found() -> None:
    """Training, and its supervision, continue without the planner [11]."""
    world = await pairs(resilience={"fault_tolerance": 2})
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    world.agents["n1"].held_kinds = {"quiesce"}
    await world.advance(20)
    lost = [e for e in world.events if e.type == "engine_lost"]
    assert [e.node_id for e in lost] == ["n1"]
    world.agents["n1"].release()
    world.planner.is_open.set()
    await world.settle()
    await world.train(5)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_recovery_that_leaves_the_pipelines_as_they_are_says_from_which_step() -> None:
    """Each node is a pipeline: those that are left are the next plan."""
    world = await running_world(3)
    await world.train(3)
    await world.kill_node("n1")
    await world.train()
    told = [event for event in world.events if event.type == "recovery_finished"]
    assert told[-1].message.startswith(
        "training continues from step 4 in 2 pipelines of 1 node instead of 3 pipelines of 1 node: "
    )
    assert told[-1].details["step"] == 4
