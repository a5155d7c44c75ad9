"""What may happen to a running job, on real processes: it goes on, and ends with the same model.

Every test ends with the digest of the oracle. Every place of the engine x every way to fail is in
the matrix (e2e/matrix); here is what happens to nodes, agents and the coordinator.
"""

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from planaria.job import JobSpec
from planaria.models import Job, Recovery
from planaria_common.priority import AHEAD
from planaria_worker.engine.failpoints import ENVIRONMENT_VARIABLE
from support.pool import Script
from support.priority import may_come_first

pytestmark = pytest.mark.e2e

STEPS = 16


@pytest.fixture(scope="module")
def spec(text: Path) -> JobSpec:
    """Two pipelines of at least two nodes each."""
    return small_job(
        text,
        training__steps=STEPS,
        resources__min_nodes=5,
        resources__min_nodes_per_pipeline=2,
    )


@pytest.fixture(scope="module")
def digest(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> str:
    return reference_run(spec, tmp_path_factory.mktemp("oracle")).digest


def on_six_nodes(spec: JobSpec) -> JobSpec:
    """Return the job with f = 2: three pipelines."""
    tolerant = spec.resilience.model_copy(update={"fault_tolerance": 2})
    six = spec.resources.model_copy(update={"min_nodes": 6})
    return spec.model_copy(update={"resilience": tolerant, "resources": six})


def event_types(cluster: Cluster, job: Job) -> list[str]:
    return [event.type for event in cluster.client.events(job_id=job.id)]


def recoveries_of(cluster: Cluster, job: Job) -> list[Recovery]:
    assert job.state == "SUCCEEDED", job.error
    return list(cluster.client.job_recoveries(job.id))


def niceness(path: Path) -> int:
    """Of the thread with this folder in /proc."""
    return int((path / "stat").read_text().rpartition(") ")[2].split()[16])


def test_processes_that_handle_failures_have_a_higher_priority_than_training(
    five_nodes: Cluster, spec: JobSpec, digest: str
) -> None:
    """Where cores are busy a recovery would wait for training, a dozen times."""
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for_step(job.id, 4)
    assert five_nodes.coordinator is not None
    first = [five_nodes.coordinator, *five_nodes.nodes.values()]
    found = {part.name: niceness(Path(f"/proc/{part.process.pid}")) for part in first}
    engines = [pid for node_id in five_nodes.nodes for pid in five_nodes.engine_pids(node_id)]
    training = {niceness(Path(f"/proc/{pid}")) for pid in engines}
    threads = [
        sorted({niceness(thread) for thread in Path(f"/proc/{pid}/task").iterdir()})
        for pid in engines
    ]
    assert five_nodes.wait_for_end(job.id).final_digest == digest
    ordinary = niceness(Path("/proc/self"))
    assert training == {ordinary}
    if not may_come_first():
        pytest.skip("no permission to come first: run as root, with CAP_SYS_NICE or ulimit -e 25")
    assert found == dict.fromkeys(found, ordinary - AHEAD)
    assert threads == [[ordinary - AHEAD, ordinary]] * 5


def test_a_stopped_node_is_lost_and_fenced_and_joins_afresh(
    five_nodes: Cluster, spec: JobSpec, digest: str
) -> None:
    """[4] It wakes up long after the others went on, does no harm, and takes part again."""
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for_step(job.id, 4)
    five_nodes.signal_node("node-2", signal.SIGSTOP)
    five_nodes.wait_for_nodes(1, "LOST")
    five_nodes.signal_node("node-2", signal.SIGCONT)
    end = five_nodes.wait_for_end(job.id)
    assert recoveries_of(five_nodes, end)[0].nodes_lost == ("node-2",)
    assert end.final_digest == digest
    five_nodes.wait_for_nodes(5)


def test_the_death_of_an_agent_alone_costs_nothing(
    five_nodes: Cluster, spec: JobSpec, digest: str
) -> None:
    """Engines outlive their agent for a lease; the next agent adopts them."""
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for_step(job.id, 3)
    pids = five_nodes.engine_pids("node-1")
    five_nodes.kill_agent("node-1")
    five_nodes.start_node("node-1")
    end = five_nodes.wait_for_end(job.id)
    assert recoveries_of(five_nodes, end) == []
    assert end.final_digest == digest
    assert pids


@pytest.mark.parametrize("agents_die", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_coordinator_dies_while_a_job_trains(
    five_nodes: Cluster, spec: JobSpec, digest: str, agents_die: bool
) -> None:
    """[7] Training goes on without it, and steps that it knew and had not stored are not lost.

    If all agents die with it, engines alone are left of what knew of them: they say them again.
    """
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for(
        "steps that are told and not stored", lambda: has_more_to_store(five_nodes, job)
    )
    five_nodes.kill_coordinator()
    for node_id in list(five_nodes.nodes) if agents_die else ():
        five_nodes.kill_agent(node_id)
        five_nodes.start_node(node_id)
    five_nodes.start_coordinator()
    end = five_nodes.wait_for_end(job.id)
    assert recoveries_of(five_nodes, end) == []
    assert end.final_digest == digest
    assert [each.step for each in five_nodes.client.job_metrics(job.id)] == list(range(STEPS))


def has_more_to_store(cluster: Cluster, job: Job) -> bool:
    """Stop the coordinator; unless it knows of more than is in its database, let it go on."""
    told = cluster.client.get_job(job.id).step
    if told < 3:
        return False
    cluster.signal_coordinator(signal.SIGSTOP)
    uri = f"file:{cluster.folder / 'coordinator' / 'coordinator.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
        query = "SELECT count(*) FROM step_metrics WHERE job_id = ?"
        (num_stored,) = database.execute(query, (job.id,)).fetchone()
    if told > num_stored:
        return True
    cluster.signal_coordinator(signal.SIGCONT)
    return False


def test_the_coordinator_dies_in_the_middle_of_a_recovery(
    five_nodes: Cluster, spec: JobSpec, digest: str
) -> None:
    """[7] The recovery is cleanly redone."""
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for_step(job.id, 3)
    five_nodes.kill_node("node-0")
    five_nodes.wait_for(
        "the recovery to begin", lambda: five_nodes.client.get_job(job.id).generation > 1
    )
    five_nodes.kill_coordinator()
    five_nodes.start_coordinator()
    end = five_nodes.wait_for_end(job.id)
    # Whether it had been told that the node's session has ended too, nobody else can tell it.
    assert recoveries_of(five_nodes, end)[0].cause in ("engine_lost", "node_lost")
    assert end.final_digest == digest


@pytest.mark.slow
def test_a_node_whose_loss_is_noticed_after_the_recovery_is_recorded_as_lost(
    five_nodes: Cluster, spec: JobSpec
) -> None:
    """The agent hangs: training goes on long before its silence tells."""
    long = spec.training.model_copy(update={"steps": 1000})
    job = five_nodes.client.submit(spec.model_copy(update={"training": long}))
    five_nodes.wait_for_step(job.id, 3)
    (pid,) = five_nodes.engine_pids("node-0")
    agent = five_nodes.nodes["node-0"].process.pid
    os.kill(agent, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    five_nodes.wait_for(
        "the recovery to be told", lambda: len(five_nodes.client.job_recoveries(job.id)) > 0
    )
    (told,) = five_nodes.client.job_recoveries(job.id)
    assert (told.cause, told.nodes_lost) == ("engine_lost", ())
    five_nodes.wait_for_nodes(1, "LOST")
    five_nodes.wait_for(
        "the recovery to name the node",
        lambda: five_nodes.client.job_recoveries(job.id)[0].nodes_lost == ("node-0",),
    )
    assert len(five_nodes.client.job_recoveries(job.id)) == 1
    os.kill(agent, signal.SIGCONT)
    five_nodes.wait_for_nodes(5)
    five_nodes.client.cancel_job(job.id)
    five_nodes.wait_for_state(job.id, "CANCELLED")


def test_two_nodes_are_lost_at_the_same_instant(
    five_nodes: Cluster, spec: JobSpec, digest: str
) -> None:
    """[5] f = 2: three replicas, and two nodes of different pipelines die together.

    What the job survives from then on is less, and it says so.
    """
    five_nodes.start_node("node-5")
    five_nodes.wait_for_nodes(6)
    job = five_nodes.client.submit(on_six_nodes(spec))
    five_nodes.wait_for_step(job.id, 3)
    plan = five_nodes.client.job_plan(job.id).plan
    assert plan is not None
    assert plan.fault_tolerance == 2
    for victim in [pipeline.stages[0].node_id for pipeline in plan.pipelines[:2]]:
        five_nodes.kill_node(victim)
    end = five_nodes.wait_for_end(job.id)
    lost = [node for recovery in recoveries_of(five_nodes, end) for node in recovery.nodes_lost]
    assert len(lost) == 2
    assert "fault_tolerance_reduced" in event_types(five_nodes, job), "four nodes hold two replicas"
    assert end.final_digest == digest


def test_more_nodes_than_f_are_lost_and_one_copy_of_the_model_is_left(
    five_nodes: Cluster, spec: JobSpec, digest: str
) -> None:
    """[5, 6] f = 1, and all nodes of the longer of two pipelines die: the other one goes on."""
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for_step(job.id, 3)
    plan = five_nodes.client.job_plan(job.id).plan
    assert plan is not None
    longest = max(plan.pipelines, key=lambda pipeline: len(pipeline.stages))
    victims = {stage.node_id for stage in longest.stages}
    assert len(victims) > 1
    for victim in victims:
        five_nodes.kill_node(victim)
    end = five_nodes.wait_for_end(job.id)
    lost = [node for recovery in recoveries_of(five_nodes, end) for node in recovery.nodes_lost]
    assert set(lost) == victims
    assert "fault_tolerance_reduced" in event_types(five_nodes, job), "one replica is left"
    assert end.final_digest == digest


@pytest.mark.parametrize("during", [pytest.param("fence", marks=pytest.mark.slow), "staging"])
def test_another_node_dies_during_a_recovery(
    five_nodes: Cluster, spec: JobSpec, digest: str, tmp_path: Path, during: str
) -> None:
    """[5] It only starts the next recovery. f = 2, so that every layer survives both."""
    script = Script(path=tmp_path / "script")
    staging = script.add(at="stage", action="hold", until=str(script.gate()))  # it never opens
    five_nodes.start_node("node-5", {ENVIRONMENT_VARIABLE: str(script.path)})
    five_nodes.wait_for_nodes(6)
    job = five_nodes.client.submit(on_six_nodes(spec))
    five_nodes.wait_for_step(job.id, 3)
    five_nodes.kill_node("node-0")
    if during == "fence":
        five_nodes.wait_for(
            "the recovery to begin", lambda: five_nodes.client.get_job(job.id).generation > 1
        )
    else:
        five_nodes.wait_for(
            "node-5 to make its next place ready", lambda: script.fired(staging) is not None
        )
    five_nodes.kill_node("node-5")
    end = five_nodes.wait_for_end(job.id)
    lost = [recovery.nodes_lost for recovery in recoveries_of(five_nodes, end)]
    assert lost == [("node-0", "node-5")]
    assert end.final_digest == digest


def test_a_drained_node_leaves_without_losing_a_microbatch(
    five_nodes: Cluster, spec: JobSpec, digest: str
) -> None:
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for_step(job.id, 3)
    five_nodes.client.drain_node("node-3")
    five_nodes.wait_for_nodes(1, "DRAINED")
    end = five_nodes.wait_for_end(job.id)
    (drain,) = recoveries_of(five_nodes, end)
    assert drain.cause == "node_drained"
    assert drain.redone_microbatches == 0
    assert end.final_digest == digest


def test_a_paused_job_stops_and_resumes(five_nodes: Cluster, spec: JobSpec, digest: str) -> None:
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for_step(job.id, 3)
    five_nodes.client.pause_job(job.id)
    paused = five_nodes.wait_for_state(job.id, "PAUSED")
    assert paused.step < STEPS
    five_nodes.client.resume_job(job.id)
    end = five_nodes.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == digest


def test_a_cancelled_job_leaves_no_engine_running(five_nodes: Cluster, spec: JobSpec) -> None:
    job = five_nodes.client.submit(spec)
    five_nodes.wait_for_step(job.id, 1)
    five_nodes.client.cancel_job(job.id)
    five_nodes.wait_for_state(job.id, "CANCELLED")
    five_nodes.wait_for(
        "no engine to be left", lambda: not any(map(five_nodes.engine_pids, five_nodes.nodes))
    )


def test_losing_every_replica_of_a_layer_fails_the_job_by_name(
    five_nodes: Cluster, spec: JobSpec
) -> None:
    """[11] f = 0 and a node is lost: the job waits for it, and fails when it is gone for good.

    The error says which layers are gone.
    """
    alone = spec.resilience.model_copy(update={"fault_tolerance": 0})
    two = spec.resources.model_copy(update={"min_nodes": 2, "max_nodes": 2})
    job = five_nodes.client.submit(spec.model_copy(update={"resilience": alone, "resources": two}))
    five_nodes.wait_for_step(job.id, 2)
    plan = five_nodes.client.job_plan(job.id).plan
    assert plan is not None
    dead = plan.pipelines[0].stages[0].node_id
    five_nodes.kill_node(dead)
    waiting = five_nodes.wait_for_state(job.id, "WAITING")
    assert f"only on {dead}" in waiting.waiting_reason
    five_nodes.client.evict_node(dead)
    end = five_nodes.wait_for_end(job.id)
    assert end.state == "FAILED"
    assert end.error is not None
    assert end.error.reason == "STATE_LOST"
    assert " is lost (" in end.error.message


def test_data_that_is_not_there_fails_the_job_and_names_node_and_path(
    five_nodes: Cluster, spec: JobSpec
) -> None:
    missing = spec.data.model_copy(update={"path": "/nowhere/*.txt"})
    job = five_nodes.client.submit(spec.model_copy(update={"data": missing}))
    end = five_nodes.wait_for_end(job.id)
    assert end.state == "FAILED"
    assert end.error is not None
    assert end.error.reason == "DATA_UNUSABLE"
    assert "/nowhere/*.txt" in end.error.message
    assert "node-" in end.error.message
