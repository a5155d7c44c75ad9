"""A job that lost everything goes on from its checkpoint on other numbers of nodes, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from planaria.job import CheckpointSpec, JobSpec
from planaria.models import Job
from planaria_worker.engine.layers.checkpoint.manifest import Manifest

pytestmark = pytest.mark.e2e

STEPS = 12
EVERY = 4
LAST_STEP_BEFORE = 9
CLI = "import sys; from planaria.cli.main import main; sys.exit(main())"


def on_nodes(text: Path, num_nodes: int) -> JobSpec:
    """Return the job that every test here trains, on so many nodes."""
    return small_job(
        text,
        training__steps=STEPS,
        resilience__fault_tolerance=0 if num_nodes < 4 else 1,
        resources__min_nodes=num_nodes,
        resources__max_nodes=num_nodes,
        resources__min_nodes_per_pipeline=2,
    )


def checkpointed(spec: JobSpec, root: Path, **fields: Any) -> JobSpec:
    checkpoint = CheckpointSpec(path=str(root), every_steps=EVERY, **fields)
    return spec.model_copy(update={"checkpoint": checkpoint})


@pytest.fixture(scope="module")
def digest(text: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what a plain loop in one process ends with."""
    return reference_run(on_nodes(text, 2), tmp_path_factory.mktemp("oracle")).digest


def failpoints(*points: dict[str, object]) -> dict[str, str]:
    return {"PLANARIA_ENGINE_FAILPOINTS": json.dumps(points)}


def wait_for_event(cluster: Cluster, job: Job, event_type: str, step: int) -> None:
    def told() -> bool:
        return any(
            event.type == event_type and event.details["step"] == step
            for event in cluster.client.events(job_id=job.id)
        )

    cluster.wait_for(f"{event_type} of step {step}", told)


def succeeded(cluster: Cluster, job_id: str) -> Job:
    job = cluster.wait_for_end(job_id)
    assert job.state == "SUCCEEDED", job.error
    return job


def resume(cluster: Cluster, job_file: Path, job: Job) -> str:
    """Type the command that the error names, with a job file of another size; return the id."""
    done = subprocess.run(
        [sys.executable, "-c", CLI, "submit", str(job_file), "--resume", job.id],
        env={
            **os.environ,
            "PLANARIA_ADDRESS": cluster.client.address,
            "PLANARIA_TOKEN": cluster.token,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_a_job_that_lost_every_engine_goes_on_on_2_and_on_5_nodes(
    cluster: Cluster, text: Path, tmp_path: Path, digest: str
) -> None:
    """Three nodes train to step 9, with checkpoints of 4 and 8; then every engine is killed.

    The job itself begins again at step 8; when it is cancelled, others can go on from there.
    """
    root = tmp_path / "runs"
    go = tmp_path / "go"
    hold = {"at": "forward", "step": LAST_STEP_BEFORE, "action": "hold", "until": str(go)}
    cluster.start(3, failpoints(hold))
    lost = cluster.client.submit(checkpointed(on_nodes(text, 3), root))
    wait_for_event(cluster, lost, "checkpoint_written", 8)
    cluster.wait_for_step(lost.id, LAST_STEP_BEFORE)
    for node_id in list(cluster.nodes):
        cluster.kill_engines(node_id)
    wait_for_event(cluster, lost, "job_restored", 8)
    cluster.client.cancel_job(lost.id)
    cluster.wait_for_state(lost.id, "CANCELLED")

    go.touch()
    for node_id in ("node-3", "node-4"):
        cluster.start_node(node_id)
    cluster.wait_for_nodes(5)
    job_file = tmp_path / "on-two.yaml"
    job_file.write_text(json.dumps(on_nodes(text, 2).to_document()))
    on_two = resume(cluster, job_file, lost)
    on_five = on_nodes(text, 5).model_copy(update={"init_from": str(root / "step-00000008")})
    assert succeeded(cluster, on_two).final_digest == digest
    second = succeeded(cluster, cluster.client.submit(on_five).id)
    assert second.final_digest == digest
    steps = [metrics.step for metrics in cluster.client.job_metrics(second.id)]
    assert min(steps) == 8, "nothing before the checkpoint was trained again"


def test_a_job_that_lost_every_engine_goes_on_from_its_checkpoint(
    cluster: Cluster, text: Path, tmp_path: Path, digest: str
) -> None:
    """[5] By itself, and every step is in the books once, as it was computed last."""
    root = tmp_path / "runs"
    go = tmp_path / "go"
    hold = {"at": "forward", "step": LAST_STEP_BEFORE, "action": "hold", "until": str(go)}
    cluster.start(2, failpoints(hold))
    job = cluster.client.submit(checkpointed(on_nodes(text, 2), root))
    wait_for_event(cluster, job, "checkpoint_written", 8)
    cluster.wait_for_step(job.id, LAST_STEP_BEFORE)
    for node_id in list(cluster.nodes):
        cluster.kill_engines(node_id)
    wait_for_event(cluster, job, "job_restored", 8)
    go.touch()
    assert succeeded(cluster, job.id).final_digest == digest
    metrics = list(cluster.client.job_metrics(job.id))
    assert [each.step for each in metrics] == list(range(STEPS))
    assert min(each.generation for each in metrics[8:]) > max(m.generation for m in metrics[:8])


@pytest.mark.slow
def test_an_engine_that_copies_long_after_the_last_step_is_not_lost(
    cluster: Cluster, text: Path, tmp_path: Path, digest: str
) -> None:
    """The others have ended meanwhile, and everybody is told to stop. Guard: who copies reports."""
    root = tmp_path / "runs"
    go = tmp_path / "go"
    hold = {"at": "checkpoint_copy", "step": STEPS, "microbatch": 0, "until": str(go)}
    cluster.start(2, failpoints({**hold, "action": "hold"}))
    job = cluster.client.submit(checkpointed(on_nodes(text, 2), root))

    def types() -> list[str]:
        return [event.type for event in cluster.client.events(job_id=job.id)]

    def are_parked() -> bool:
        told = types()
        return "job_finishing" in told and "fence_complete" in told[told.index("job_finishing") :]

    cluster.wait_for("all to be parked at the end", are_parked)
    go.touch()
    assert succeeded(cluster, job.id).final_digest == digest
    assert "engine_lost" not in types()
    assert (root / f"step-{STEPS:08}").exists()


@pytest.mark.slow
def test_the_coordinator_is_killed_before_the_seal(
    cluster: Cluster, text: Path, tmp_path: Path, digest: str
) -> None:
    """The checkpoint of step 4 is found or given up; training goes on, and the next ones come."""
    root = tmp_path / "runs"
    go = tmp_path / "go"
    hold = {"at": "checkpoint", "step": 4, "action": "hold", "until": str(go)}
    cluster.start(3, failpoints(hold))
    job = cluster.client.submit(checkpointed(on_nodes(text, 3), root))
    cluster.wait_for_step(job.id, 5)
    cluster.kill_coordinator()
    go.touch()
    assert not (root / "step-00000004").exists()
    cluster.start_coordinator()
    end = succeeded(cluster, job.id)
    assert end.final_digest == digest
    complete = {path.name for path in root.iterdir()}
    assert "step-00000012" in complete
    assert not [name for name in complete if name.endswith(".partial")]


@pytest.mark.slow
def test_a_killed_writer_leaves_only_complete_checkpoints(
    cluster: Cluster, text: Path, tmp_path: Path, digest: str
) -> None:
    """A node's engine dies before a file of step 8; a replacement takes its place."""
    root = tmp_path / "runs"
    kill = {"at": "checkpoint", "step": 8, "action": "kill"}
    cluster.start(4)
    cluster.start_node("victim", failpoints(kill))
    cluster.wait_for_nodes(5)
    job = cluster.client.submit(checkpointed(on_nodes(text, 5), root, keep=2))
    end = succeeded(cluster, job.id)
    assert end.final_digest == digest
    events = list(cluster.client.events(job_id=job.id))
    assert [e.node_id for e in events if e.type == "engine_lost"] == ["victim"]
    told = {
        event.details["step"]: event.type
        for event in events
        if event.type.startswith("checkpoint_")
    }
    assert told[12] == "checkpoint_written"
    assert told[8] in ("checkpoint_written", "checkpoint_incomplete")
    kept = sorted(path.name for path in root.iterdir())
    assert kept == [f"step-{step:08d}" for step in sorted(told) if "written" in told[step]][-2:]


@pytest.mark.slow
def test_a_hanging_disk_is_reported_and_the_job_ends_with_its_last_checkpoint(
    cluster: Cluster, text: Path, tmp_path: Path, digest: str
) -> None:
    """A node's disk hangs in step 8 for ever: nobody waits for the deadline of anything else."""
    root = tmp_path / "runs"
    hang = {"at": "checkpoint", "step": 8, "action": "hold", "until": str(tmp_path / "never")}
    cluster.start(4)
    cluster.start_node("victim", failpoints(hang))
    cluster.wait_for_nodes(5)
    job = cluster.client.submit(checkpointed(on_nodes(text, 5), root, deadline_seconds=2))
    cluster.wait_for_step(job.id, STEPS)
    end = cluster.wait_for_end(job.id, timeout=30)
    assert (end.state, end.final_digest) == ("SUCCEEDED", digest)
    events = [e for e in cluster.client.events(job_id=job.id) if e.type.startswith("checkpoint_")]
    told = {event.details["step"]: event.type for event in events if "step" in event.details}
    assert told == {
        4: "checkpoint_written",
        8: "checkpoint_failed",
        12: "checkpoint_written",
    }
    (late,) = [event for event in events if event.type == "checkpoint_writer_late"]
    assert "victim" in late.message
    assert "the disk hangs" in late.message
    assert Manifest.read(root / "step-00000012").step == STEPS
