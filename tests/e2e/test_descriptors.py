"""A process may open no more files for a while: what needs them waits, and the rest goes on."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from planaria.job import JobSpec
from support.descriptors import without_descriptors

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DigestOf = Callable[[JobSpec], str]

NUM_NODES = 3
LACK_SECONDS = 6.0


@pytest.fixture
def spec(text: Path) -> JobSpec:
    return small_job(text, training__steps=100, resources__min_nodes=NUM_NODES)


def check(cluster: Cluster, job_id: str, spec: JobSpec, digest_of: DigestOf) -> list[str]:
    """Return the types of the job's events once it has ended as it should."""
    end = cluster.wait_for_end(job_id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == digest_of(spec)
    return [event.type for event in cluster.client.events(job_id=job_id)]


def test_an_agent_without_descriptors_starts_its_engine_later(
    cluster: Cluster, spec: JobSpec, digest_of: DigestOf
) -> None:
    cluster.start(NUM_NODES)
    job_id = cluster.client.submit(spec).id
    cluster.wait_for_step(job_id, 3)
    with without_descriptors(cluster.nodes["node-1"].process.pid):
        cluster.kill_engines("node-1")
        step = cluster.client.get_job(job_id).step
        cluster.wait_for_step(job_id, step + 3)  # the others train
        cluster.wait_for(
            "a reason", lambda: "start_waits" in (cluster.folder / "node-1.log").read_text()
        )
        assert cluster.nodes["node-1"].process.poll() is None
    events = check(cluster, job_id, spec, digest_of)
    assert "node_refused" not in events
    assert "node_lost" not in [event.type for event in cluster.client.events()]


def test_a_coordinator_without_descriptors_accepts_nobody_for_a_while(
    cluster: Cluster, spec: JobSpec, digest_of: DigestOf
) -> None:
    cluster.start(NUM_NODES)
    job_id = cluster.client.submit(spec).id
    cluster.wait_for_step(job_id, 3)
    assert cluster.coordinator is not None
    with without_descriptors(cluster.coordinator.process.pid):
        cluster.start_node("node-9")
        log = cluster.folder / "node-9.log"
        cluster.wait_for(
            "a session that fails", lambda: log.exists() and "session_lost" in log.read_text()
        )
        known: tuple[str, ...] = ()
        with suppress(Exception):  # a connection that is open still serves
            known = tuple(node.id for node in cluster.client.list_nodes())
        assert "node-9" not in known
    cluster.wait_for_nodes(NUM_NODES + 1)
    check(cluster, job_id, spec, digest_of)
    assert "node_lost" not in [event.type for event in cluster.client.events()]


def test_an_engine_without_descriptors_serves_nobody_for_a_while(
    cluster: Cluster, spec: JobSpec, digest_of: DigestOf
) -> None:
    """A peer is lost meanwhile, and its successor wants copies and connections."""
    cluster.start(NUM_NODES)
    job_id = cluster.client.submit(spec).id
    cluster.wait_for_step(job_id, 3)
    (pid,) = cluster.engine_pids("node-0")
    with without_descriptors(pid):
        cluster.kill_engines("node-1")
        time.sleep(LACK_SECONDS)
    (log,) = (cluster.folder / "node-0" / "engines").glob("*/engine.log")
    assert "Too many open files" in log.read_text()
    check(cluster, job_id, spec, digest_of)
