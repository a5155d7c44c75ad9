"""Engines that share a GPU, over gloo by way of host memory: a loss changes no bit."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from support.gpus import require_gpus

pytestmark = [pytest.mark.e2e, pytest.mark.gpu]

NUM_NODES = 5
STEPS = 200
"""Enough that a GPU is not done before the kill."""


class SharedGpu(Cluster):
    """Every node computes on the machine's first GPU."""

    def node_options(self, node_id: str) -> Mapping[str, object]:
        return {"accelerator-kind": "cuda", "transport": "gloo"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    require_gpus(1)
    with SharedGpu(tmp_path / "cluster") as running:
        running.start(NUM_NODES)
        yield running


def test_the_loss_of_an_engine_changes_no_bit(cluster: Cluster, text: Path) -> None:
    """Two pipelines of at least two stages: sends, receives and sums, before and after a loss."""
    spec = small_job(
        text,
        training__steps=STEPS,
        resources__min_nodes=NUM_NODES,
        resources__min_nodes_per_pipeline=2,
    )
    undisturbed = cluster.wait_for_end(cluster.client.submit(spec).id)
    assert undisturbed.state == "SUCCEEDED", undisturbed.error

    job = cluster.client.submit(spec)
    cluster.wait_for_step(job.id, 3)
    cluster.kill_engines("node-1")
    end = cluster.wait_for_end(job.id)

    assert end.state == "SUCCEEDED", end.error
    assert cluster.client.job_recoveries(job.id)
    assert end.final_digest == undisturbed.final_digest
