"""The plan changes at a commit: nobody stops."""

import pytest

from planaria_coordinator.domain.engines.directive import Directive, StagePlan
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.simulation.handover_world import staging_join, switching_join
from unit.coordinator.simulation.world import running_world


async def test_a_join_costs_no_engine_anything() -> None:
    """The job is running all the while, and its time is productive [8, 9]."""
    world = await running_world(3)
    before = (await world.job()).time_seconds
    await staging_join(world)
    await world.train(3)
    assert (await world.job()).state is JobState.RUNNING
    assert (await world.job()).step == 4
    await world.release()
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)
    job = await world.job()
    assert job.step == 6
    grown = {k for k, seconds in job.time_seconds.items() if seconds > before.get(k, 0.0)}
    assert grown == {"productive"}
    (recovery,) = world.recoveries
    assert (recovery.cause, recovery.nodes_joined) == ("node_joined", ("n9",))
    assert recovery.idle_seconds == 0.0
    assert recovery.resume_seconds is None
    assert recovery.lost_accelerator_seconds == {"idle": 0.0, "redone": 0.0}
    assert recovery.copied_bytes == 600
    assert {"plan", "copy", "rebuild", "activate"} == {phase.name for phase in recovery.phases}
    assert len(world.members()) == 4


async def test_unchanged_pipelines_keep_their_step() -> None:
    """n0-n2 and n1-n3 go on; two joiners make a third pipeline."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    world.planner.appends_joiners = True
    for node_id in ("n8", "n9"):
        await world.add_node(node_id, "prepare")
    await world.release()
    staged = world.engine_on("n0").staged
    assert isinstance(staged, StagePlan)
    assert [pipeline.keeps_step for pipeline in staged.pipelines] == [True, True, False]
    assert staged.layers == ()
    joining = world.engine_on("n8").staged
    assert isinstance(joining, StagePlan)
    assert [source.layer for source in joining.layers] == [0, 1, 2]
    await world.train(2)
    assert len(world.members()) == 6
    placement = world.run.placement
    assert placement is not None
    assert placement.first_generations == (1, 1, placement.generation)


async def test_a_drained_node_leaves_at_a_commit() -> None:
    world = await running_world(4)
    await world.coordinator.cluster.drain("n1")
    await world.settle()
    assert world.phase is Phase.SWITCHING
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)
    (recovery,) = world.recoveries
    assert (recovery.cause, recovery.idle_seconds) == ("node_drained", 0.0)
    assert recovery.redone_microbatches == 0
    assert not world.agents["n1"].engines
    assert (await world.job()).step == 3


async def test_a_plan_without_copies_is_one_command_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is long, and stored once however many engines there are."""
    world = await running_world(4)
    dispatcher = world.coordinator._state.dispatcher
    told: list[Directive] = []
    send = dispatcher.send

    def note(directive: Directive) -> None:
        told.append(directive)
        send(directive)

    monkeypatch.setattr(dispatcher, "send", note)
    await world.coordinator.cluster.drain("n1")
    await world.settle()
    staged = [each.command for each in told if isinstance(each.command, StagePlan)]
    assert len(staged) == 3
    assert len({id(command) for command in staged}) == 1


async def test_a_coordinator_restarted_during_staging_begins_the_change_again() -> None:
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
    assert (recovery.nodes_joined, recovery.idle_seconds) == (("n9",), 0.0)


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


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.SWITCHING])
async def test_a_pause_is_not_held_up_by_a_change(phase: Phase) -> None:
    world = await running_world(3)
    await (staging_join if phase is Phase.STAGING else switching_join)(world)
    await world.coordinator.jobs.pause(world.job_id)
    await world.release()
    await world.train(2)
    assert (await world.job()).state is JobState.PAUSED
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    await world.train(2)
    assert len(world.members()) == 4


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.SWITCHING])
async def test_the_last_step_needs_no_change(phase: Phase) -> None:
    world = await running_world(3, training={"steps": 2})
    await (staging_join if phase is Phase.STAGING else switching_join)(world)
    await world.train()
    await world.release()
    job = await world.job()
    assert (job.state, job.step) == (JobState.SUCCEEDED, 2)


async def test_only_the_share_of_parked_engines_counts_as_lost() -> None:
    """Four of five engines compute while the fifth waits: a fifth of that time is lost [9]."""
    world = await running_world(6, resources={"min_nodes_per_pipeline": 2})
    world.begin_step()
    world.hold("quiesce", "n4")
    await world.kill_node("n0")
    before = (await world.job()).time_seconds
    await world.advance(2.0)
    await world.release()
    after = (await world.job()).time_seconds
    lost = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after}
    assert lost["quiesce"] == pytest.approx(0.4)
    assert lost["productive"] == pytest.approx(1.6)
