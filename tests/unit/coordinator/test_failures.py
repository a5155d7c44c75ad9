"""A loss in any phase of any kind of change ends in training, with nothing lost [2, 4, 5, 7]."""

from collections.abc import Awaitable, Callable
from operator import methodcaller

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.application.agents import EngineFault
from planaria_coordinator.domain.directive import Failure
from planaria_coordinator.domain.job import JobState
from unit.coordinator.simulation import World, running_world

Disturb = Callable[[World], Awaitable[None]]


async def lose_a_node(world: World) -> None:
    """n1 dies in the middle of a step that one engine has committed already."""
    members = world.begin_step()
    world.pass_exchange(members[:1])
    await world.kill_node("n1")


async def lose_an_engine(world: World) -> None:
    """The engine of n1 dies; its agent says so, and it is created anew."""
    world.begin_step()
    agent = world.agents["n1"]
    agent.lose_engine(next(iter(agent.engines)))
    await world.settle()


async def join(world: World) -> None:
    await world.add_node("n9")
    await world.train()


async def drain(world: World) -> None:
    await world.coordinator.cluster.drain("n1")
    await world.settle()
    await world.train()


async def pause_and_resume(world: World) -> None:
    await world.coordinator.jobs.pause(world.job_id)
    await world.settle()
    await world.train()
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()


CAUSES: dict[str, Disturb] = {
    "node_lost": lose_a_node,
    "engine_lost": lose_an_engine,
    "node_joined": join,
    "node_drained": drain,
    "resumed": pause_and_resume,
}
KINDS = ["prepare", "quiesce", "commit", "copy", "activate"]


async def lose_another_node(world: World) -> None:
    await world.kill_node("n2")


async def crash_the_coordinator(world: World) -> None:
    await world.crash_coordinator()
    await world.reconnect()


async def lose_a_node_and_crash(world: World) -> None:
    world.agents.pop("n2").disconnect()
    await world.crash_coordinator()
    await world.reconnect()
    await world.advance(4)


async def fall_silent(world: World) -> None:
    world.agents["n2"].is_silent = True
    await world.advance(4)


async def lose_every_session(world: World) -> None:
    for agent in world.agents.values():
        agent.disconnect()
    await world.settle()
    await world.reconnect()


SECOND: dict[str, Disturb] = {
    "another_node_dies": lose_another_node,
    "the_coordinator_crashes": crash_the_coordinator,
    "both": lose_a_node_and_crash,
    "a_node_falls_silent": fall_silent,
    "all_sessions_end": lose_every_session,
}


async def recover(world: World) -> None:
    """Let everything that was held back go on, and train."""
    for agent in world.agents.values():
        agent.release()
    await world.settle()
    for _ in range(6):
        await world.train()
    await world.advance(2)
    await world.train(2)


@pytest.mark.parametrize("nodes_per_pipeline", [1, 2])
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_second_fault_in_any_phase_only_starts_the_next_change(
    cause: str, kind: str, second: str, nodes_per_pipeline: int
) -> None:
    """With three replicas two faults lose nothing, wherever the second one falls."""
    world = await running_world(
        4 if nodes_per_pipeline == 1 else 6,
        resilience={"fault_tolerance": 2},
        resources={"min_nodes_per_pipeline": nodes_per_pipeline},
    )
    await world.train(2)
    for agent in world.agents.values():
        agent.held_kinds.add(kind)
    await CAUSES[cause](world)
    before = (await world.job()).step
    await SECOND[second](world)
    await recover(world)

    job = await world.job()
    assert job.state is JobState.RUNNING
    assert job.error is None
    assert job.step >= before
    assert world.members()
    assert not world.violations
    generations = [g for _, g in world.database.tables.generations]
    assert generations == sorted(set(generations))
    await world.stop()


async def test_the_step_in_flight_is_finished_when_one_engine_had_passed() -> None:
    """All or none: the survivors roll forward to the only one that committed [2]."""
    world = await running_world(4)
    members = world.begin_step()
    world.pass_exchange(members[:1])
    await world.kill_node("n3")
    assert {e.committed_steps for e in world.engines().values()} == {2}
    assert "step_rolled_forward" in world.event_types()
    assert world.recoveries[-1].redone_microbatches == 0
    await world.stop()


async def test_nothing_that_whole_pipelines_have_computed_is_computed_again() -> None:
    """The step in flight is finished by those who lost nobody [1, 8]."""
    world = await running_world(4)
    world.clock.advance(0.5)
    world.begin_step()
    await world.kill_node("n3")
    assert {e.committed_steps for e in world.engines().values()} == {1}
    assert world.recoveries[-1].redone_microbatches == 0
    assert world.recoveries[-1].lost_accelerator_seconds["redone"] == 0.0
    assert (await world.job()).time_seconds.get("redone", 0.0) == 0.0
    told = [e.details for e in world.events if e.type == "step_finished_by"]
    assert [(d["kept_microbatches"], d["lost_microbatches"]) for d in told] == [(6, 2)]
    await world.stop()


async def test_the_step_in_flight_is_redone_when_no_pipeline_is_whole() -> None:
    """All or none: without a witness the step is computed again, and counted as redone [2, 9]."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    world.clock.advance(0.5)
    world.begin_step()
    for agent in world.agents.values():
        agent.held_kinds.add("quiesce")
    await world.kill_node("n0")  # of the first pipeline
    await world.kill_node("n3")  # of the second
    for agent in world.agents.values():
        agent.release()
    await world.settle()
    assert {e.committed_steps for e in world.engines().values()} == {1}
    assert "step_finished_by" not in world.event_types()
    assert world.recoveries[-1].redone_microbatches == 8
    assert world.recoveries[-1].lost_accelerator_seconds["redone"] == 2.0
    assert (await world.job()).time_seconds["redone"] == 0.5
    await world.stop()


async def test_work_that_is_reported_twice_is_counted_once() -> None:
    """A second loss collects everyone again; what was thrown away was so only once [9]."""
    world = await running_world(
        6, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 2}
    )
    world.begin_step()
    for agent in world.agents.values():
        agent.held_kinds.add("activate")
    await world.kill_node("n0")  # n3 has computed three microbatches in vain,
    await world.kill_node("n1")  # and n4 another three
    for agent in world.agents.values():
        agent.release()
    await world.settle()
    await world.train()
    assert world.recoveries[-1].nodes_lost == ("n0", "n1")
    assert world.recoveries[-1].redone_microbatches == 6
    assert world.recoveries[-1].lost_accelerator_seconds["redone"] == 2.0
    await world.stop()


async def test_two_nodes_lost_at_once_are_one_story() -> None:
    """f means f: losing any f nodes at the same instant loses no committed step [5]."""
    world = await running_world(4, resilience={"fault_tolerance": 2})
    await world.train(3)
    for node_id in ("n0", "n2"):
        world.agents.pop(node_id).disconnect()
    await world.advance(11)
    await world.train()
    assert (await world.job()).step == 5
    assert world.recoveries[-1].nodes_lost == ("n0", "n2")
    await world.stop()


async def test_when_every_replica_is_gone_the_job_fails_and_says_which_layers() -> None:
    """No silent failure: STATE_LOST names the layers [10]."""
    world = await running_world(
        4, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 1}
    )
    world.agents.pop("n0").disconnect()
    world.agents.pop("n1").disconnect()
    await world.advance(12)
    job = await world.job()
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.reason is ErrorReason.STATE_LOST
    assert job.error.metadata == {"layers": "0,1,2"}
    await world.stop()


async def test_below_n0_the_job_waits_and_goes_on_by_itself() -> None:
    """Three layers of state on three nodes of a cut of three survive on two nodes that wait."""
    world = await running_world(
        4, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 1}
    )
    await world.kill_node("n0")
    await world.train(2)
    # n1, n2, n3 are left: a pipeline of three. Everyone parks; then all but one can go.
    await world.kill_node("n1")
    assert (await world.job()).state in (JobState.FAILED, JobState.WAITING)
    await world.stop()


async def test_an_agent_that_comes_back_within_its_lease_is_no_loss() -> None:
    """Only the death of a node or an engine is a loss."""
    world = await running_world(4)
    generation = world.run.generation
    agent = world.agents["n1"]
    agent.disconnect()
    await world.train(5)
    agent.agent_id = "restarted"
    await agent.connect()
    await world.train(5)
    assert world.run.generation == generation
    assert "node_lost" not in world.event_types()
    await world.stop()


async def test_a_transition_waits_for_an_agent_that_is_away() -> None:
    """Its engine cannot have heard: after the agent's return it has the whole deadline again."""
    world = await running_world(4)
    await world.train()
    away = world.agents["n2"]
    away.disconnect()
    await world.kill_node("n1")
    await world.advance(7)
    assert (await world.job()).state is JobState.RECOVERING
    away.held_kinds.add("quiesce")
    await away.connect()
    await world.advance(4)
    away.release()
    await world.settle()
    await world.train()
    assert (await world.job()).state is JobState.RUNNING
    assert world.event_types().count("engine_lost") == 0
    assert len(world.members()) == 3
    await world.stop()


async def test_an_agent_that_stays_away_longer_than_its_lease_is_lost() -> None:
    world = await running_world(4)
    world.agents["n1"].disconnect()
    await world.advance(10.5)
    assert "node_lost" in world.event_types()
    assert (await world.job()).state is JobState.RUNNING
    await world.stop()


async def test_a_node_that_was_declared_lost_joins_afresh() -> None:
    """A stale engine can do no harm: it is told to stop, and the node gets a new one [4]."""
    world = await running_world(4)
    agent = world.agents["n1"]
    old = set(agent.engines)
    agent.is_silent = True
    await world.advance(4)
    assert world.recoveries[-1].nodes_lost == ("n1",)
    agent.is_silent = False
    agent.session = None
    await agent.connect()
    await world.settle()
    await world.train(3)
    assert agent.engines
    assert not old & set(agent.engines)
    assert len(world.members()) == 4
    await world.stop()


async def test_an_engine_that_died_alone_is_created_anew() -> None:
    world = await running_world(4)
    await lose_an_engine(world)
    await world.train(3)
    assert world.recoveries[0].cause == "engine_lost"
    assert world.recoveries[1].cause == "node_joined"
    assert len(world.members()) == 4
    await world.stop()


async def test_a_restarted_coordinator_knows_how_far_the_job_was() -> None:
    """And a node that died meanwhile is lost one node deadline after the start."""
    world = await running_world(4)
    await world.train(3)
    await world.coordinator.flush()
    world.agents.pop("n1").disconnect()
    await world.crash_coordinator()
    assert (await world.job()).step == 4
    await world.reconnect()
    await world.advance(3.5)
    assert world.recoveries[-1].nodes_lost == ("n1",)
    await world.stop()


async def test_communication_that_broke_with_everyone_alive_is_built_anew() -> None:
    """Nobody is lost; after too many times in a row the job says so and fails [10]."""
    world = await running_world(3)
    for attempt in range(4):
        engine = world.members()[0]
        fault = EngineFault(
            job_id=world.job_id,
            engine_id=engine.id,
            generation=engine.generation,
            failure=Failure(reason=ErrorReason.UNAVAILABLE, message="reset by peer"),
            fatal=False,
            detect_time=world.clock.now(),
        )
        world.agents["n0"].say(methodcaller("engine_fault", fault))
        await world.advance(1)
        if attempt < 3:
            assert (await world.job()).state is JobState.RUNNING
            assert len(world.members()) == 3
    job = await world.job()
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.message == "communication broke 4 times: reset by peer"
    assert "engine_lost" not in world.event_types()
    await world.stop()


async def test_a_fault_that_every_engine_would_meet_fails_the_job() -> None:
    world = await running_world(3)
    engine = world.members()[0]
    fault = EngineFault(
        job_id=world.job_id,
        engine_id=engine.id,
        generation=engine.generation,
        failure=Failure(
            reason=ErrorReason.GRADIENT_OUT_OF_RANGE,
            message="layer 5: a gradient of step 1 is out of range",
            metadata={"layer": "5", "step": "1"},
        ),
        fatal=True,
        detect_time=world.clock.now(),
    )
    world.agents["n0"].say(lambda session: session.engine_fault(fault))
    await world.settle()
    job = await world.job()
    assert job.error is not None
    assert job.error.metadata == {"layer": "5", "step": "1"}
    assert not world.engines()
    await world.stop()


async def test_a_coordinator_that_stood_still_blames_nobody() -> None:
    """After a stall of its own every node gets fresh grace."""
    world = await running_world(4)
    world.clock.advance(60)
    await world.coordinator.tick()
    await world.settle()
    assert "node_lost" not in world.event_types()
    await world.stop()


async def test_engines_that_hang_are_found_by_a_fence() -> None:
    """Nobody advances, everybody beats: the one that does not answer the fence is lost."""
    world = await running_world(4)
    hanging = world.agents["n2"]
    hanging.held_kinds = {"quiesce"}
    await world.advance(14)
    lost = [e for e in world.events if e.type == "engine_lost"]
    assert [e.node_id for e in lost] == ["n2"]
    await world.stop()


async def test_nobody_is_told_what_could_not_be_stored() -> None:
    """A full disk delays a recovery; it does not lose or double it [10]."""
    world = await running_world(4)
    world.database.num_failing_commits = 2
    world.agents.pop("n1").disconnect()
    world.clock.advance(0.1)
    await world.advance(12)
    for _ in range(100):
        if (await world.job()).state is JobState.RUNNING and world.recoveries:
            break
        await world.advance(0.5)
    assert not world.violations
    assert world.recoveries[-1].nodes_lost == ("n1",)
    await world.stop()
