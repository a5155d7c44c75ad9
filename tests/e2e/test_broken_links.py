"""Engines that cannot reach each other, on real processes in network namespaces.

Agents reach the coordinator all the while. The job does without the node whose links are broken,
and ends with the model of an undisturbed run.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.common.network import RESET
from benchmarks.oracle.from_spec import reference_run
from e2e.matrix.pace import Pace
from planaria.job import JobSpec
from planaria.models import Job
from support.network import Network, NetworkError
from support.pool import Pool

pytestmark = pytest.mark.e2e

NUM_NODES = 6
CUT = "node-3"
JOINING = f"node-{NUM_NODES}"
LARGE = "ip length > 1000 drop"
NEW = "tcp flags & (syn | ack) == syn drop"
"""Connections that are open carry on; conntrack would take them for new when it begins to look."""


@pytest.fixture(scope="module")
def spec(text: Path) -> JobSpec:
    return small_job(
        text,
        training__steps=40,
        model__hidden_size=128,
        resources__min_nodes=NUM_NODES,
        resources__min_nodes_per_pipeline=2,
    )


@pytest.fixture(scope="module")
def digest(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> str:
    return reference_run(spec, tmp_path_factory.mktemp("oracle")).digest


@pytest.fixture(scope="module")
def growing(text: Path) -> JobSpec:
    """A job that a seventh node makes faster."""
    return small_job(
        text,
        training__steps=40,
        training__global_batch_size=14,
        resources__min_nodes=NUM_NODES,
    )


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        with Network([f"node-{index}" for index in range(NUM_NODES + 1)]) as network:
            network.filter(CUT, "input", "counter")
            yield network
    except NetworkError as error:
        pytest.skip(f"no network namespaces with nftables: {error}")


@pytest.fixture(scope="module")
def shared_pool(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("links") / "cluster"
    with Pool(
        folder, network=network, node_deadline_seconds=10, progress_deadline_seconds=60
    ) as pool:
        pool.start(NUM_NODES)
        yield pool


@pytest.fixture
def pool(shared_pool: Pool, network: Network) -> Pool:
    """Return a cluster in which everybody reaches everybody."""
    for node_id in (CUT, JOINING):
        network.unfilter(node_id)
    shared_pool.heal(NUM_NODES)
    return shared_pool


def left_out(pool: Pool, job: Job) -> set[str]:
    return {e.node_id for e in pool.client.events(job_id=job.id) if e.type == "node_left_out"}


def times(pool: Pool, job: Job, *types: str) -> int:
    return sum(event.type in types for event in pool.client.events(job_id=job.id))


def block(network: Network, node_id: str, how: str, *hooks: str) -> None:
    """Let a node's packets reach the coordinator only."""
    network.cut_from_peers(node_id, network.host, how, hooks)


def begin_paced(pool: Pool, spec: JobSpec) -> tuple[Pace, Job]:
    """Train a job whose steps take their time."""
    pace = Pace(pool, pool.new_script(), list(pool.nodes), range(4, 38))
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, 4)
    return pace, job


def check_end(pool: Pool, job: Job, digest: str) -> None:
    end = pool.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == digest
    assert times(pool, job, "job_waiting") == 0


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "hooks"),
    [
        ("drop", ("input", "output")),
        pytest.param("drop", ("input",), marks=SLOW),
        pytest.param("drop", ("output",), marks=SLOW),
        pytest.param(RESET, ("input", "output"), marks=SLOW),
        pytest.param(RESET, ("input",), marks=SLOW),
        pytest.param(RESET, ("output",), marks=SLOW),
    ],
)
def test_a_job_does_without_a_node_whose_engines_are_cut_off(
    pool: Pool, network: Network, spec: JobSpec, digest: str, how: str, hooks: tuple[str, ...]
) -> None:
    """The same plan was made three times, and the job failed."""
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, 4)
    block(network, CUT, how, *hooks)
    check_end(pool, job, digest)
    assert left_out(pool, job) <= {CUT}
    assert times(pool, job, "node_left_out", "engine_lost") >= 1
    assert pool.client.get_node(CUT).state == "READY"


@pytest.mark.slow
@pytest.mark.parametrize("hooks", [("input", "output"), ("input",), ("output",)])
def test_a_job_does_without_a_node_that_takes_no_new_connections(
    pool: Pool, network: Network, spec: JobSpec, digest: str, hooks: tuple[str, ...]
) -> None:
    """Old ones carry on. Guard: peers are connected to again while groups are not built."""
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, 4)
    block(network, CUT, NEW, *hooks)
    pool.kill_node("node-0")
    check_end(pool, job, digest)
    assert left_out(pool, job) == {CUT}
    lost = {e.node_id for e in pool.client.events(job_id=job.id) if e.type == "engine_lost"}
    assert lost <= {"node-0"}


@pytest.mark.slow
def test_large_messages_that_vanish_are_no_wait_of_minutes(
    pool: Pool, network: Network, spec: JobSpec, digest: str
) -> None:
    """Guard: `StalledMessages`. A link that one engine accuses may cost either of its ends."""
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, 4)
    block(network, CUT, LARGE, "input")
    check_end(pool, job, digest)
    assert left_out(pool, job)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["drop", RESET, LARGE])
def test_a_joining_node_that_others_cannot_reach_disturbs_nobody(
    pool: Pool, network: Network, growing: JobSpec, tmp_path: Path, how: str
) -> None:
    """Adding a node ended the job."""
    pace, job = begin_paced(pool, growing)
    block(network, JOINING, how, "input")
    pool.start_node(JOINING)
    pace.wait_for(f"{JOINING} to be left out", lambda: bool(left_out(pool, job)))
    pace.end()
    check_end(pool, job, reference_run(growing, tmp_path).digest)
    assert left_out(pool, job) == {JOINING}
    assert pool.client.job_recoveries(job.id) == ()
    assert times(pool, job, "engine_lost", "communication_broke", "recovery_started") == 0


@pytest.mark.slow
def test_a_node_that_takes_no_new_connections_keeps_nobody_from_joining(
    pool: Pool, network: Network, growing: JobSpec, tmp_path: Path
) -> None:
    """The one that joins was left out in its place, again and again."""
    pace, job = begin_paced(pool, growing)
    block(network, CUT, NEW, "input", "output")
    pool.start_node(JOINING)
    pace.wait_for("a node to be left out", lambda: bool(left_out(pool, job)))
    pace.end()
    check_end(pool, job, reference_run(growing, tmp_path).digest)
    assert left_out(pool, job) == {CUT}
    assert times(pool, job, "engine_lost") == 0


@pytest.mark.slow
def test_a_node_that_was_left_out_takes_part_again(
    pool: Pool, network: Network, spec: JobSpec, digest: str
) -> None:
    """Its links are whole again when its pause is over."""
    pace, job = begin_paced(pool, spec)
    block(network, CUT, "drop", "input", "output")
    pace.wait_for(f"{CUT} to be left out", lambda: CUT in left_out(pool, job))
    assert CUT not in members(pool, job)
    network.unfilter(CUT)
    pace.wait_for(f"{CUT} to take part again", lambda: CUT in members(pool, job))
    pace.end()
    check_end(pool, job, digest)
    assert times(pool, job, "node_left_out") == 1


def members(pool: Pool, job: Job) -> set[str]:
    """Return the nodes of the plan."""
    plan = pool.client.job_plan(job.id).plan
    assert plan is not None
    return {stage.node_id for pipeline in plan.pipelines for stage in pipeline.stages}
