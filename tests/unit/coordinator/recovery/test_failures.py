"""What is lost: steps are finished or redone, layers are gone or not, and who is to blame."""

from datetime import datetime
from operator import methodcaller

from planaria_common.errors import ErrorReason
from planaria_coordinator.application.agents.agent_messages import EngineFault
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.job import JobState
from support.clock import FakeClock
from unit.coordinator.recovery.test_second_faults import lose_an_engine
from unit.coordinator.simulation.engine import SimEngine
from unit.coordinator.simulation.world import running_world


def broken(engine: SimEngine, now: datetime) -> EngineFault:
    """What an engine says whose communicators broke."""
    return EngineFault(
        job_id=engine.job_id,
        engine_id=engine.id,
        generation=engine.generation,
        failure=Failure(reason=ErrorReason.UNAVAILABLE, message="reset by peer"),
        fatal=False,
        detect_time=now,
    )


async def test_the_step_in_flight_is_finished_when_one_engine_had_passed() -> None:
    """All or none: the survivors roll forward to the only one that committed [2]."""
    world = await running_world(4)
    members = world.begin_step()
    world.pass_exchange(members[:1])
    await world.kill_node("n3")
    assert {e.committed_steps for e in world.engines().values()} == {2}
    assert "step_rolled_forward" in world.event_types()
    assert world.recoveries[-1].redone_microbatches == 0


async def test_nothing_that_healthy_pipelines_have_computed_is_recomputed() -> None:
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


async def test_the_step_in_flight_is_redone_when_every_pipeline_is_broken() -> None:
    """All or none: without a witness the step is computed again, and counted as redone [2, 9]."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    world.clock.advance(0.5)
    world.begin_step()
    world.hold("quiesce")
    await world.kill_node("n0")  # of the first pipeline
    await world.kill_node("n3")  # of the second
    await world.release()
    assert {e.committed_steps for e in world.engines().values()} == {1}
    assert "step_finished_by" not in world.event_types()
    assert world.recoveries[-1].redone_microbatches == 8
    assert world.recoveries[-1].lost_accelerator_seconds["redone"] == 2.0
    assert (await world.job()).time_seconds["redone"] == 0.5


async def test_work_that_is_reported_twice_is_counted_once() -> None:
    """A second loss collects everyone again; what was thrown away was so only once [9]."""
    world = await running_world(
        6, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 2}
    )
    world.begin_step()
    world.hold("activate")
    await world.kill_node("n0")  # n3 has computed three microbatches in vain,
    await world.kill_node("n1")  # and n4 another three
    await world.release()
    await world.train()
    assert world.recoveries[-1].nodes_lost == ("n0", "n1")
    assert world.recoveries[-1].redone_microbatches == 6
    assert world.recoveries[-1].lost_accelerator_seconds["redone"] == 2.0


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


async def test_when_every_replica_is_gone_the_job_fails_and_says_which_layers() -> None:
    """No silent failure: STATE_LOST names the layers, and the last loss [11].

    Until it is known, not only seen by others, that they are gone, the job waits.
    """
    world = await running_world(
        4, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 1}
    )
    await world.kill_node("n0")
    await world.kill_node("n1")
    assert (await world.job()).state is JobState.WAITING
    assert "layers 0-2 are only on n0, n1" in (await world.job()).waiting_reason
    for node_id in ("n0", "n1"):
        await world.coordinator.cluster.evict(node_id)
        await world.settle()
    job = await world.job()
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.reason is ErrorReason.STATE_LOST
    assert job.error.metadata == {"layers": "0,1,2"}
    assert job.error.message.startswith(
        "every replica of layers 0,1,2 is gone at step 1, the last as n1 is lost ("
    )


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


async def test_an_engine_that_died_alone_is_restarted() -> None:
    world = await running_world(4)
    await lose_an_engine(world)
    await world.train(3)
    assert world.recoveries[0].cause == "engine_lost"
    assert world.recoveries[1].cause == "node_joined"
    assert len(world.members()) == 4


async def test_communication_that_broke_just_before_a_pause_holds_it_up_no_longer() -> None:
    """The commit that the pause waits for would never come."""
    world = await running_world(3)
    world.begin_step()
    engine = world.members()[0]
    world.agents["n0"].say(methodcaller("engine_fault", broken(engine, world.clock.now())))
    await world.settle()
    await world.coordinator.jobs.pause(world.job_id)
    await world.advance(1)
    assert (await world.job()).state is JobState.PAUSED


async def test_communication_that_broke_with_all_engines_alive_is_rebuilt() -> None:
    """Nobody is lost; after too many times in a row the job rests before it tries again [11]."""
    world = await running_world(3)
    for attempt in range(4):
        engine = world.members()[0]
        world.agents["n0"].say(methodcaller("engine_fault", broken(engine, world.clock.now())))
        await world.advance(1)
        if attempt < 3:
            assert (await world.job()).state is JobState.RUNNING
            assert len(world.members()) == 3
    (waiting,) = (event for event in world.events if event.type == "job_waiting")
    assert "communication broke again and again: reset by peer" in waiting.message
    await world.advance(3)
    assert (await world.job()).state is JobState.RUNNING
    assert "engine_lost" not in world.event_types()
    await world.train(2)
    assert world.run.setback is None


async def test_broken_communication_is_acted_on_after_a_reboot_of_the_coordinators_host() -> None:
    """Guard: `restart_disturbance`. The deadline was one of the old monotonic clock."""
    world = await running_world(3)
    await world.advance(60)
    engine = world.members()[0]
    world.agents["n0"].say(methodcaller("engine_fault", broken(engine, world.clock.now())))
    await world.settle()
    await world.coordinator.cluster.drain("n2")  # which stores what the job knows
    assert world.run.disturbance is not None
    world.clock = FakeClock(world.clock.now())
    await world.crash_coordinator()
    await world.reconnect()
    await world.advance(1)
    assert "communication_broke" in world.event_types()


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


async def test_engines_that_hang_are_found_by_a_fence() -> None:
    """Nobody advances, everybody beats: the one that does not answer the fence is lost."""
    world = await running_world(4)
    hanging = world.agents["n2"]
    hanging.held_kinds = {"quiesce"}
    await world.advance(14)
    lost = [e for e in world.events if e.type == "engine_lost"]
    assert [e.node_id for e in lost] == ["n2"]
