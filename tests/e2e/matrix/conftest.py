"""One pool and one oracle for the whole matrix."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from benchmarks.oracle.reference import ReferenceResult
from e2e.matrix.scenario import NUM_NODES, SPARE
from planaria.job import JobSpec
from support.network import Network, NetworkError
from support.pool import Pool

SEED = int(os.environ.get("PLANARIA_MATRIX_SEED", "1"))
NUM_STEPS = 30


@pytest.fixture(scope="package")
def spec(text: Path) -> JobSpec:
    """Three pipelines of two nodes each, so that two may be lost at once."""
    return small_job(
        text,
        training__steps=NUM_STEPS,
        training__global_batch_size=14,  # seven microbatches: a seventh node makes the job faster
        resilience__fault_tolerance=2,
        resources__min_nodes=NUM_NODES,
        resources__max_nodes=NUM_NODES + 1,
        resources__min_nodes_per_pipeline=2,
    )


@pytest.fixture(scope="package")
def expected(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> ReferenceResult:
    return reference_run(spec, tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="package")
def network() -> Iterator[Network | NetworkError]:
    """Network namespaces with nftables for the nodes, or why there are none."""
    try:
        with Network([f"node-{index}" for index in range(NUM_NODES + 1)]) as network:
            network.filter(SPARE, "input", "counter")
            yield network
    except NetworkError as error:
        yield error


@pytest.fixture(scope="package")
def shared_pool(
    network: Network | NetworkError, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("matrix") / "cluster"
    with Pool(
        folder,
        network=network if isinstance(network, Network) else None,
        heartbeat_interval_seconds=0.5,
        node_deadline_seconds=4,
        directive_deadline_seconds=4,
        progress_deadline_seconds=4,
    ) as pool:
        pool.start(num_nodes=NUM_NODES + 1)
        yield pool


@pytest.fixture
def pool(shared_pool: Pool) -> Pool:
    """Seven nodes that are well, the last one kept in reserve."""
    if shared_pool.network is not None:
        for index in range(NUM_NODES + 1):
            shared_pool.network.unfilter(f"node-{index}")
    shared_pool.heal(NUM_NODES + 1)
    shared_pool.client.cordon_node(SPARE)
    shared_pool.wait_until_idle()
    return shared_pool
