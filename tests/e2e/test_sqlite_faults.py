"""The coordinator's SQLite file cannot be written while a job trains and loses an engine."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.full_disk import without_writes
from benchmarks.common.jobs import small_job
from planaria.job import JobSpec

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_NODES = 4
UNDISTURBED_SECONDS = 2.0
REST_SECONDS = 10.0


def test_a_job_outlives_a_file_that_cannot_be_written(
    cluster: Cluster, text: Path, digest_of: Callable[[JobSpec], str]
) -> None:
    """[10] Training goes on, the recovery waits and says why, and no node is lost."""
    spec = small_job(text, training__steps=100, resources__min_nodes=NUM_NODES)
    cluster.start(NUM_NODES)
    job_id = cluster.client.submit(spec).id
    cluster.wait_for_step(job_id, 3)
    assert cluster.coordinator is not None
    with without_writes([cluster.coordinator.process.pid]):
        begin_time = datetime.now(UTC) + timedelta(seconds=0.5)
        time.sleep(UNDISTURBED_SECONDS)
        kill_time = datetime.now(UTC)
        cluster.kill_engines("node-1")
        cluster.wait_for(
            "a reason",
            lambda: (
                "cannot be stored: the database" in cluster.client.get_job(job_id).waiting_reason
            ),
        )
        time.sleep(REST_SECONDS)
        assert cluster.coordinator.process.poll() is None
    end = cluster.wait_for_end(job_id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == digest_of(spec)
    commits = [step.commit_time for step in cluster.client.job_metrics(job_id)]
    assert any(begin_time < commit_time < kill_time for commit_time in commits), "nobody trained"
    events = [event.type for event in cluster.client.events()]
    assert "node_lost" not in events
    assert events.count("engine_lost") == 1
    assert "log_lines_dropped" in (cluster.folder / "coordinator.log").read_text()
