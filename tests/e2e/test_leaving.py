"""SIGTERM to an agent says that its machine goes away: its jobs hand over, then it ends."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from planaria.job import JobSpec

pytestmark = pytest.mark.e2e


def changes_of(cluster: Cluster, node_id: str) -> list[str]:
    events = [event for event in cluster.client.events() if event.node_id == node_id]
    return [event.type for event in events if event.type.startswith("node_")]


def test_a_node_whose_agent_is_asked_to_end_is_drained_first(
    cluster: Cluster, text: Path, digest_of: Callable[[JobSpec], str]
) -> None:
    """Training goes on meanwhile; nobody waits for the lease of the node, and it may come back."""
    spec = small_job(text, training__steps=100, resources__min_nodes=3)
    cluster.start(3)
    job = cluster.client.submit(spec)
    cluster.wait_for_step(job.id, 3)
    leaving = cluster.nodes.pop("node-1")
    leaving.process.send_signal(signal.SIGTERM)
    cluster.wait_for_node("node-1", "LOST")
    assert leaving.process.wait(10) == 0
    leaving.end()
    assert cluster.engine_pids("node-1") == []
    assert changes_of(cluster, "node-1") == [
        "node_joined",
        "node_draining",
        "node_drained",
        "node_left",
    ]
    cluster.start_node("node-1")
    cluster.wait_for_nodes(3)
    end = cluster.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    causes = [recovery.cause for recovery in cluster.client.job_recoveries(job.id)]
    assert causes[0] == "node_drained"
    assert not {"node_lost", "engine_lost"} & set(causes)
    assert end.final_digest == digest_of(spec)


class Hasty(Cluster):
    """Only one of its agents loses patience."""

    def node_options(self, node_id: str) -> dict[str, object]:
        return {"drain-grace-seconds": 1 if node_id == "node-0" else 600}


@pytest.mark.slow
def test_an_agent_ends_after_its_grace_and_at_a_second_signal(text: Path, tmp_path: Path) -> None:
    """Jobs with nowhere to go: without an end of the wait the machines would go away first."""
    spec = small_job(
        text,
        training__steps=100_000,
        resources={"min_nodes": 1, "max_nodes": 1},
        resilience={"fault_tolerance": 0},
    )
    with Hasty(tmp_path / "cluster") as cluster:
        cluster.start(2)
        for job in [cluster.client.submit(spec) for _ in range(2)]:
            cluster.wait_for_step(job.id, 2)
        leaving = dict(cluster.nodes)
        cluster.nodes.clear()
        for node_id, part in leaving.items():
            part.process.send_signal(signal.SIGTERM)
            if node_id == "node-1":
                cluster.wait_for_node(node_id, "DRAINING")
                assert part.process.poll() is None
                part.process.send_signal(signal.SIGTERM)
            cluster.wait_for_node(node_id, "LOST")
            assert part.process.wait(10) == 0
            part.end()
            assert cluster.engine_pids(node_id) == []
