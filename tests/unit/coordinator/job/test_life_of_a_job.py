"""The life of a job: it waits, starts, trains, pauses, continues and finishes."""

import hashlib
import json

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.decide import decide
from planaria_coordinator.domain.job.job import Job, JobState
from planaria_coordinator.domain.job.job_run import Limits, Moment
from planaria_coordinator.domain.job.signals import NodeLost
from planaria_coordinator.domain.recovery import fencing
from planaria_coordinator.domain.recovery.transition import Cause
from unit.coordinator.simulation.agent import NUM_LAYERS
from unit.coordinator.simulation.world import World, running_world


def assert_every_second_has_a_name(job: Job) -> None:
    """The named times add up to the wall clock [9]."""
    assert job.end_time is not None
    wall_seconds = (job.end_time - job.create_time).total_seconds()
    assert sum(job.time_seconds.values()) == pytest.approx(wall_seconds, abs=1e-6)


async def test_a_job_starts_trains_and_succeeds() -> None:
    """From submission to the digest; its engines are gone at the end."""
    world = World()
    await world.start(4)
    await world.submit(training={"steps": 3})
    assert (await world.job()).state is JobState.RUNNING
    await world.train(3)

    job = await world.job()
    assert job.state is JobState.SUCCEEDED
    assert job.step == 3
    assert not world.engines()
    assert world.event_types()[-1] == "job_succeeded"
    assert_every_second_has_a_name(job)


async def test_a_job_starts_without_the_fencing_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that never trained have nothing to stop: the first plan is asked for at once."""

    def never(_turn: object) -> None:
        raise AssertionError("nothing is to be fenced")

    # Its code, since other modules have imported the function.
    monkeypatch.setattr(fencing.begin_quiescing, "__code__", never.__code__)
    world = await running_world(2)
    assert (await world.job()).state is JobState.RUNNING


async def test_the_final_digest_is_that_of_the_layers_digests_in_order() -> None:
    """SHA-256 over the layers' SHA-256 digests, as docs/explanation/reproducibility.md says."""
    world = await running_world(2, training={"steps": 2})
    await world.train(2)
    layers = b"".join(bytes.fromhex(f"{layer:064x}") for layer in range(NUM_LAYERS))
    assert (await world.job()).final_digest == hashlib.sha256(layers).hexdigest()


async def test_engines_tell_the_layers_of_a_users_own_model_and_that_it_ties_them() -> None:
    """Then the host of the last layer holds the first one too."""
    world = World()
    world.ties_embeddings = True
    await world.start(2)
    await world.submit(
        model={"import_path": "m:layers"},
        resources={"min_nodes_per_pipeline": 2},
        resilience={"fault_tolerance": 0},
    )
    assert (await world.job()).state is JobState.RUNNING
    stored = [json.loads(directive) for directive in world.database.tables.directives.values()]
    copies = [d["command"] for d in stored if d["command"]["kind"] == "copy"]
    assert [copy["initial_layers"] for copy in copies] == [[0, 1, 2], [0, 3, 4, 5]]
    assert not any(copy["layers"] for copy in copies)


async def test_the_output_is_written_once_by_one_engine() -> None:
    world = await running_world(3, training={"steps": 2}, output={"path": "out/model"})
    await world.train()
    written = [e for e in world.events if e.type == "output_written"]
    assert [e.details["path"] for e in written] == ["out/model"]
    assert (await world.job()).state is JobState.SUCCEEDED


@pytest.mark.parametrize("kind", ["quiesce", "roll_forward", "digest_layers", "export"])
async def test_a_node_lost_while_the_job_finishes_loses_nothing(kind: str) -> None:
    """A failure during finishing opens another transition [5]."""
    world = await running_world(3, training={"steps": 3}, output={"path": "out/model"})
    await world.train()
    world.hold(kind)
    world.pass_exchange(world.begin_step()[:2])
    await world.settle()
    await world.kill_node("n0")
    await world.release()
    job = await world.job()
    assert job.state is JobState.SUCCEEDED
    assert job.step == 3
    assert_every_second_has_a_name(job)


async def test_each_loss_while_the_job_finishes_is_a_story_of_its_own() -> None:
    """Nothing that is learnt later of one that was over makes another recovery of it."""
    world = await running_world(4, training={"steps": 3}, output={"path": "out/model"})
    await world.train()
    world.hold("digest_layers")
    world.pass_exchange(world.begin_step()[:2])
    await world.settle()
    agent = world.agents.pop("n0")
    (engine_id,) = agent.engines
    world.tell_peer_lost(engine_id)
    await world.settle()
    assert [r.cause for r in world.recoveries] == ["engine_lost"]
    now = world.clock.now()
    lost = NodeLost(node_id="n0", fault_time=now, reason="its session ended", gone=True)
    told = decide(Moment(seconds=0.0, time=now), world.run, lost, Limits()).run
    assert told.transition is not None
    assert told.transition.history.cause is Cause.FINISHED, "it would be begun again"

    await world.advance(5.0)
    await world.kill_node("n1")
    _, second = world.recoveries
    assert second.nodes_lost == ("n1",)
    assert second.resume_seconds is None, "the job was over"
    assert second.fence_seconds is not None
    assert second.fence_seconds < 5.0
    await world.release()
    assert (await world.job()).state is JobState.SUCCEEDED
    assert len(world.recoveries) == 2


async def test_a_job_is_finished_though_the_last_step_report_was_lost() -> None:
    """A heartbeat says so as well."""
    world = await running_world(2, training={"steps": 2})
    await world.commit_unreported()
    assert (await world.job()).state is JobState.SUCCEEDED


async def test_a_job_waits_for_as_many_nodes_as_its_fault_tolerance_needs() -> None:
    """PENDING says why, and starts by itself."""
    world = World()
    await world.start(1)
    await world.submit(resources={"min_nodes": 3}, resilience={"fault_tolerance": 2})
    assert (await world.job()).state is JobState.PENDING
    await world.add_node("n1")
    reasons = [e.message for e in world.events if e.type == "job_pending"]
    assert reasons[-1] == "the job waits: 2 of 3 nodes are free (3 replicas of 1 node)"
    await world.add_node("n2")
    assert (await world.job()).state is JobState.RUNNING


async def test_a_second_job_waits_for_the_nodes_of_the_first() -> None:
    world = await running_world(2)
    first = world.job_id
    await world.submit()
    assert (await world.job()).state is JobState.PENDING
    await world.coordinator.jobs.cancel(first)
    await world.settle()
    assert (await world.job()).state is JobState.RUNNING


async def test_a_paused_job_parks_after_a_commit_and_resumes() -> None:
    world = await running_world(3)
    await world.coordinator.jobs.pause(world.job_id)
    await world.settle()
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)
    job = await world.job()
    assert job.state is JobState.PAUSED
    assert job.step == 2
    world.clock.advance(5)
    assert (await world.job()).time_seconds["paused"] >= 5
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    await world.train()
    assert (await world.job()).step == 3
    assert world.recoveries[-1].cause == "resumed"


async def test_a_node_lost_while_paused_leaves_the_job_paused() -> None:
    world = await running_world(3)
    await world.coordinator.jobs.pause(world.job_id)
    await world.settle()
    await world.train()
    await world.kill_node("n0")
    assert (await world.job()).state is JobState.PAUSED
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    await world.train()
    assert (await world.job()).step == 3
    assert len(world.members()) == 2


async def test_a_pause_taken_back_before_the_commit_changes_nothing() -> None:
    world = await running_world(3)
    await world.coordinator.jobs.pause(world.job_id)
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    await world.train(3)
    job = await world.job()
    assert job.state is JobState.RUNNING
    assert job.step >= 3


@pytest.mark.parametrize("kind", ["", "prepare", "quiesce", "copy", "activate"])
async def test_a_job_can_be_cancelled_in_any_phase(kind: str) -> None:
    """Its engines stop, and its nodes are free for others."""
    world = World()
    await world.start(2)
    if kind in ("prepare", "copy", "activate"):
        world.hold(kind)
    await world.submit()
    if kind == "quiesce":
        world.hold(kind)
        await world.add_node("n9")
    await world.coordinator.jobs.cancel(world.job_id)
    await world.settle()
    for agent in world.agents.values():
        agent.release()
    await world.advance(2)  # an engine that started too late is seen in a heartbeat
    job = await world.job()
    assert job.state is JobState.CANCELLED
    assert_every_second_has_a_name(job)
    assert not world.engines()
    assert (await world.coordinator.jobs.cancel(world.job_id)).state is JobState.CANCELLED
    await world.submit()
    assert (await world.job()).state is JobState.RUNNING


async def test_a_node_whose_data_differs_is_done_without() -> None:
    """The one that differs from the others is named."""
    world = World()
    await world.start(3)
    world.agents["n0"].data_digest = "other"
    await world.submit()
    assert (await world.job()).state is JobState.RUNNING
    (refused,) = (event for event in world.events if event.type == "node_refused")
    assert refused.node_id == "n0"
    assert "n0 sees other contents at corpus.txt than n1" in refused.message
    assert len(world.members()) == 2


async def test_a_node_of_another_environment_is_refused_by_a_reproducible_job_alone() -> None:
    world = World()
    await world.start(3)
    world.agents["n1"].fingerprint = {"torch": "3"}
    await world.submit(training={"reproducible": False})
    assert len(world.members()) == 3
    await world.coordinator.jobs.cancel(world.job_id)
    await world.settle()
    await world.submit()
    assert world.run.refused == {
        "n1": "n1 has torch 3, n0 has 2: a reproducible job needs them equal"
    }


async def test_engines_that_cannot_talk_to_each_other_serve_no_job_together() -> None:
    """NCCL and gloo do not meet, whatever is said of the arithmetic."""
    world = World()
    await world.start(3)
    for agent in world.agents.values():
        agent.fingerprint = {"transport": "gloo_via_host"}
    world.agents["n1"].fingerprint = {"transport": "nccl"}
    await world.submit(training={"reproducible": False})
    assert world.run.refused == {
        "n1": "n1 has transport nccl, n0 has gloo_via_host: every job needs them equal"
    }


async def test_a_job_waits_while_nobody_can_tell_which_node_has_the_right_data() -> None:
    """No step is trained on the wrong one; what was mended is read again."""
    world = World()
    await world.start(2)
    world.agents["n0"].data_digest = "stale"
    await world.submit()
    await world.advance(20)
    job = await world.job()
    assert job.state is JobState.PENDING
    assert "n1 sees other contents at corpus.txt than n0" in job.waiting_reason
    assert not world.run.refused
    world.agents["n0"].data_digest = world.agents["n1"].data_digest
    await world.advance(120)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 2


async def test_the_waiting_reason_names_the_nodes_that_were_refused() -> None:
    world = World()
    await world.start(3)
    for node_id in ("n0", "n1"):
        world.agents[node_id].refusal = Failure(
            reason=ErrorReason.DATA_UNUSABLE, message=f"{node_id}: no such file", metadata={}
        )
    await world.submit(resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 0})
    await world.advance(2)
    job = await world.job()
    assert job.state is JobState.PENDING
    assert "refused: n0: no such file; n1: no such file" in job.waiting_reason


@pytest.mark.parametrize("refusing", [("n1",), ("n0", "n1", "n2")])
async def test_data_that_no_node_can_use_fails_the_job(refusing: tuple[str, ...]) -> None:
    """With what the last agent says; a node that alone cannot is done without."""
    world = World()
    await world.start(3)
    for node_id in refusing:
        world.agents[node_id].refusal = Failure(
            reason=ErrorReason.DATA_UNUSABLE,
            message=f"{node_id}: corpus.txt: no such file",
            metadata={"node_id": node_id, "path": "corpus.txt"},
        )
    await world.submit()
    job = await world.job()
    if refusing == ("n1",):
        assert (job.state, len(world.members())) == (JobState.RUNNING, 2)
        return
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.message == "n2: corpus.txt: no such file"


async def test_an_engine_that_does_not_start_is_tried_again_and_then_done_without() -> None:
    world = World()
    await world.start(3)
    world.agents["n2"].refusal = Failure(
        reason=ErrorReason.ENGINE_FAILED, message="n2 cannot start an engine", metadata={}
    )
    await world.submit()
    job = await world.job()
    assert job.state is JobState.RUNNING
    assert world.event_types().count("engine_not_started") == 3
    assert len(world.members()) == 2


async def test_a_job_that_no_machine_can_start_at_the_moment_waits() -> None:
    """A disk that is full everywhere is no reason to fail, nor to do without the nodes later."""
    world = World()
    await world.start(2)
    for agent in world.agents.values():
        agent.refusal = Failure(
            reason=ErrorReason.UNAVAILABLE, message="No space left on device", metadata={}
        )
    await world.submit()
    job = await world.job()
    assert (job.state, job.error) == (JobState.PENDING, None)
    assert "No space left on device" in job.waiting_reason
    for agent in world.agents.values():
        agent.refusal = None
    await world.advance(5)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 2


async def test_a_node_whose_disk_was_full_at_the_start_is_tried_again() -> None:
    world = World()
    await world.start(2)
    full = world.agents["n1"]
    full.refusal = Failure(
        reason=ErrorReason.UNAVAILABLE, message="No space left on device", metadata={}
    )
    await world.submit()
    await world.advance(10)
    assert len(world.members()) == 1
    full.refusal = None
    await world.advance(60)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 2


async def test_the_reason_of_the_last_node_alone_fails_no_job() -> None:
    """The other had no room at the moment: nobody has seen it lack the data."""
    world = World()
    await world.start(2)
    for node_id, reason in (
        ("n0", ErrorReason.UNAVAILABLE),
        ("n1", ErrorReason.DATA_UNUSABLE),
    ):
        world.agents[node_id].refusal = Failure(reason=reason, message="not now", metadata={})
    world.agents["n1"].held_kinds.add("prepare")
    await world.submit()
    await world.advance(5)
    world.agents["n0"].refusal = None
    await world.release()
    await world.advance(60)
    job = await world.job()
    assert (job.state, job.error) == (JobState.PENDING, None)


async def test_an_engine_that_never_answers_prepare_is_given_up() -> None:
    world = World()
    await world.start(3)
    world.agents["n2"].held_kinds.add("prepare")
    await world.submit()
    await world.advance(361)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 2


async def test_f_that_cannot_be_met_any_more_is_said_loudly_and_training_goes_on() -> None:
    world = await running_world(3, resilience={"fault_tolerance": 2})
    await world.kill_node("n2")
    job = await world.job()
    assert job.state is JobState.RUNNING
    assert job.fault_tolerance == 1
    told = [e.message for e in world.events if e.type == "fault_tolerance_reduced"]
    assert told == ["the job survives losing 1 node at once now; 2 wanted"]
    await world.add_node("n9")
    await world.train(2)
    assert "fault_tolerance_restored" in world.event_types()
