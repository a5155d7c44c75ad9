"""A disk is full in the middle of training: training goes on, and what cannot be written waits."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from planaria.job import JobSpec
from support.disks import fill, small_disk

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Part = Literal["coordinator", "agents", "checkpoints", "everything"]

NUM_NODES = 4
DISK_BYTES = 24 << 20
UNDISTURBED_SECONDS = 3.0
REST_SECONDS = 17.0


@pytest.fixture
def disks() -> Iterator[ExitStack]:
    with ExitStack() as mounted:
        yield mounted


def job(text: Path, folder: Path) -> JobSpec:
    return small_job(
        text,
        training__steps=100,
        resources__min_nodes=NUM_NODES,
        checkpoint={"path": str(folder / "checkpoints"), "every_steps": 10, "keep": 2},
    )


def places(folder: Path, part: Part) -> list[Path]:
    cluster = folder / "cluster"
    return {
        "coordinator": [cluster / "coordinator"],
        "agents": [cluster / f"node-{index}" for index in range(NUM_NODES)],
        "checkpoints": [folder / "checkpoints"],
        "everything": [cluster, folder / "checkpoints"],
    }[part]


def hold_full(disks: list[Path], seconds: float, until: Callable[[], bool] = bool) -> bool:
    """Keep disks full for some time; tell whether something became true meanwhile."""
    deadline = time.monotonic() + seconds
    came_true = False
    while time.monotonic() < deadline:
        for disk in disks:
            fill(disk)
        came_true = came_true or until()
        time.sleep(0.1)
    return came_true


@pytest.mark.parametrize("part", ["coordinator", "agents", "checkpoints", "everything"])
def test_a_job_outlives_a_full_disk(
    disks: ExitStack, tmp_path: Path, text: Path, part: Part, digest_of: Callable[[JobSpec], str]
) -> None:
    """An engine dies meanwhile: its recovery waits, says why, and the model is the same."""
    spec = job(text, tmp_path)
    mounted = [disks.enter_context(small_disk(each, DISK_BYTES)) for each in places(tmp_path, part)]
    cluster = disks.enter_context(Cluster(tmp_path / "cluster"))
    cluster.start(NUM_NODES)
    job_id = cluster.client.submit(spec).id
    cluster.wait_for_step(job_id, 3)

    fillers = [fill(disk) for disk in mounted]
    full_time = datetime.now(UTC)
    hold_full(mounted, UNDISTURBED_SECONDS)
    kill_time = datetime.now(UTC)
    cluster.kill_engines("node-1")
    waits = "cannot be stored: the database"
    has_said_why = hold_full(
        mounted, REST_SECONDS, lambda: waits in cluster.client.get_job(job_id).waiting_reason
    )
    for filler in fillers:
        filler.unlink()

    end = cluster.wait_for_end(job_id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == digest_of(spec)
    begun = full_time + timedelta(seconds=0.5)
    commits = [step.commit_time for step in cluster.client.job_metrics(job_id)]
    assert any(begun < commit_time < kill_time for commit_time in commits), "nobody trained"
    assert has_said_why == (part in ("coordinator", "everything"))
    events = [event.type for event in cluster.client.events(job_id=job_id)]
    assert "node_refused" not in events
    assert {node.state for node in cluster.client.list_nodes()} == {"READY"}
    if part in ("checkpoints", "everything"):
        assert "checkpoint_failed" in events
    if part == "agents":
        assert "start_waits" in (cluster.folder / "node-1.log").read_text()
    if part == "everything":
        assert "log_lines_dropped" in (cluster.folder / "coordinator.log").read_text()


def test_a_job_that_is_submitted_while_no_agent_can_write_starts_later(
    disks: ExitStack, tmp_path: Path, text: Path
) -> None:
    spec = small_job(text, training__steps=5, resources__min_nodes=2)
    folders = [tmp_path / "cluster" / f"node-{index}" for index in range(2)]
    mounted = [disks.enter_context(small_disk(each, DISK_BYTES)) for each in folders]
    cluster = disks.enter_context(Cluster(tmp_path / "cluster"))
    cluster.start(2)
    fillers = [fill(disk) for disk in mounted]
    job_id = cluster.client.submit(spec).id
    hold_full(mounted, UNDISTURBED_SECONDS)
    for filler in fillers:
        filler.unlink()
    assert cluster.wait_for_end(job_id).state == "SUCCEEDED"
