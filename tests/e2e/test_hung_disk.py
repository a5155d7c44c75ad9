"""A file system hangs under checkpoints, logs and data for a while: training goes on."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from planaria.job import JobSpec
from support.disks import freezable_disk, frozen

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_NODES = 3
DISK_BYTES = 200 << 20
HANG_SECONDS = 12.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as everything:
        yield everything


@pytest.mark.parametrize("is_under_everything", [False, True], ids=["checkpoints", "everything"])
def test_a_job_outlives_a_file_system_that_hangs(
    stack: ExitStack,
    tmp_path: Path,
    text: Path,
    is_under_everything: bool,
    digest_of: Callable[[JobSpec], str],
) -> None:
    """Checkpoints are given up with their reason; engines end when they are to."""
    disk = stack.enter_context(freezable_disk(tmp_path / "disk", tmp_path / "image", DISK_BYTES))
    cluster = stack.enter_context(
        Cluster((disk if is_under_everything else tmp_path) / "cluster", node_deadline_seconds=3)
    )
    spec = small_job(
        text,
        training__steps=100,
        resources__min_nodes=NUM_NODES,
        checkpoint={
            "path": str(disk / "checkpoints"),
            "every_steps": 5,
            "deadline_seconds": 2,
        },
    )
    cluster.start(NUM_NODES)
    job_id = cluster.client.submit(spec).id
    cluster.wait_for_step(job_id, 3)
    begin_time = datetime.now(UTC)
    with frozen(disk):
        time.sleep(HANG_SECONDS)
    end_time = datetime.now(UTC)
    end = cluster.wait_for_end(job_id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == digest_of(spec)
    commits = [step.commit_time for step in cluster.client.job_metrics(job_id)]
    assert sum(begin_time < commit_time < end_time for commit_time in commits) > 1
    events = cluster.client.events(job_id=job_id)
    assert any("hangs" in e.message for e in events if e.type == "checkpoint_failed")
    assert "engine_lost" not in [event.type for event in events]
    assert "node_lost" not in [event.type for event in cluster.client.events()]
    cluster.wait_for("all engines to end", lambda: not any(map(cluster.engine_pids, cluster.nodes)))
