"""A node that was lost and comes back: what it ran ends, and it takes part with something new."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from benchmarks.oracle.reference import ReferenceResult
from e2e.matrix.pace import Pace
from planaria.job import JobSpec
from support.network import Network, NetworkError
from support.pool import Pool, is_alive, node_of

pytestmark = pytest.mark.e2e

NUM_NODES = 4
STEPS = 40
PACED_STEPS = range(4, 38)
"""Enough for a node to be lost, to come back, to import what engines need, and to join."""


@pytest.fixture(scope="module")
def spec(text: Path) -> JobSpec:
    """Two pipelines of two nodes each."""
    return small_job(
        text,
        training__steps=STEPS,
        resources__min_nodes=NUM_NODES,
        resources__max_nodes=NUM_NODES,
        resources__min_nodes_per_pipeline=2,
    )


@pytest.fixture(scope="module")
def expected(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> ReferenceResult:
    return reference_run(spec, tmp_path_factory.mktemp("oracle"))


@pytest.fixture(params=["stopped", pytest.param("cut off", marks=pytest.mark.slow)])
def network(request: pytest.FixtureRequest) -> Iterator[Network | None]:
    """Return a network that can cut a node off; None: the node is stopped and evicted instead."""
    if request.param == "stopped":
        yield None
        return
    try:
        with Network([f"node-{index}" for index in range(NUM_NODES)]) as network:
            yield network
    except NetworkError as error:
        pytest.skip(f"no network namespaces: {error}")


@pytest.fixture
def pool(no_forks: None, network: Network | None, tmp_path: Path) -> Iterator[Pool]:
    """Engines are held on purpose, and must not count as hanging meanwhile."""
    folder = tmp_path / "cluster"
    with Pool(
        folder, network=network, node_deadline_seconds=3, progress_deadline_seconds=60
    ) as pool:
        pool.start(NUM_NODES)
        yield pool


def test_a_node_that_comes_back_is_fenced_and_joins_afresh(
    pool: Pool, network: Network | None, spec: JobSpec, expected: ReferenceResult
) -> None:
    """[4, 6] Its old engine ends and commits nothing more; a new one gets a place and commits."""
    pace = Pace(pool, pool.new_script(), list(pool.nodes), PACED_STEPS)
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, PACED_STEPS.start)
    (old_pid,) = pool.engines_of(job.id, "node-1").values()
    if network is None:
        pool.signal_node("node-1", signal.SIGSTOP)
        pool.client.evict_node("node-1")  # others reach its machine
    else:
        network.cut("node-1")
    pace.wait_for("node-1 to be lost", lambda: pool.client.get_node("node-1").state == "LOST")
    if network is None:
        pool.signal_node("node-1", signal.SIGCONT)
    else:
        network.heal("node-1")
    pace.wait_for("its old engine to end", lambda: not is_alive(old_pid))
    pace.wait_for(
        "node-1 to have joined",
        lambda: any("node-1" in each.nodes_joined for each in pool.client.job_recoveries(job.id)),
    )
    pace.end()
    end = pool.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == expected.digest
    first, *others = pool.client.job_recoveries(job.id)
    assert first.nodes_lost == ("node-1",)
    assert [each.nodes_joined for each in others] == [("node-1",)]
    old, new = [trace for trace in pool.trace(job.id) if node_of(trace.engine) == "node-1"]
    ended, began = [[line["step"] for line in trace.events("commit")] for trace in (old, new)]
    assert max(ended) < min(began)
    assert max(began) == STEPS - 1
    for node_id in pool.nodes.keys() - {"node-1"}:
        assert len(pool.engines_of(job.id, node_id)) == 1, f"{node_id} lost its engine"
