"""Engines out of reach are not gone: the job waits for them, and they go on as they are."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from benchmarks.oracle.reference import ReferenceResult
from e2e.matrix.pace import hold
from planaria.job import JobSpec
from planaria.models import Job
from support.network import Network, NetworkError
from support.pool import Pool

pytestmark = pytest.mark.e2e

NUM_NODES = 4
STEPS = 12
HELD_STEP = 5
SECONDS_CUT = 8
"""Longer than a node is waited for."""


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


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Engines are held on purpose, and must not count as hanging meanwhile."""
    with Pool(
        tmp_path / "cluster",
        node_deadline_seconds=2,
        agent_lease_seconds=2,
        progress_deadline_seconds=60,
    ) as pool:
        pool.start(NUM_NODES)
        yield pool


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network([f"node-{index}" for index in range(NUM_NODES)]) as network:
            yield network
    except NetworkError as error:
        pytest.skip(f"no network namespaces: {error}")


@pytest.fixture
def cut_pool(no_forks: None, network: Network, tmp_path: Path) -> Iterator[Pool]:
    folder = tmp_path / "cluster"
    with Pool(
        folder, network=network, node_deadline_seconds=2, progress_deadline_seconds=60
    ) as pool:
        pool.start(NUM_NODES)
        yield pool


def begin(pool: Pool, spec: JobSpec) -> tuple[Job, Path]:
    """Return a job that is held in a step until there is a file."""
    script = pool.new_script()
    gate = script.gate()
    for node_id in pool.nodes:
        hold(script, node_id, HELD_STEP, gate)
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, HELD_STEP)
    return job, gate


def first_stages(pool: Pool, job: Job) -> list[str]:
    """Return the nodes that alone hold the first layers."""
    plan = pool.client.job_plan(job.id).plan
    assert plan is not None
    return [pipeline.stages[0].node_id for pipeline in plan.pipelines]


def has_fenced_itself(pool: Pool, job: Job, node_id: str) -> bool:
    logs = (pool.folder / node_id / "engines").glob(f"{job.id}.*/engine.log")
    return any("lease_expired" in log.read_text() for log in logs)


def check_end(pool: Pool, job: Job, away: list[str], expected: ReferenceResult) -> None:
    """The job ends as if nothing had happened; of those that were away one at least went on.

    One is enough to have every layer: who comes later than that may join with a new engine.
    """
    end = pool.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == expected.digest
    went_on = {n for n in pool.nodes if len(pool.engines_of(job.id, n)) == 1}
    assert went_on & set(away)


def test_engines_whose_agents_are_away_for_longer_than_the_lease_go_on_with_new_ones(
    pool: Pool, spec: JobSpec, expected: ReferenceResult
) -> None:
    """[4, 5] They fence themselves, keep the only replicas of the first layers, are adopted."""
    job, gate = begin(pool, spec)
    away = first_stages(pool, job)
    for node_id in away:
        pool.kill_agent(node_id)
    pool.wait_for(
        "their engines to fence themselves",
        lambda: all(has_fenced_itself(pool, job, node_id) for node_id in away),
    )
    gate.touch()
    for node_id in away:
        pool.start_node(node_id)
    check_end(pool, job, away, expected)


@pytest.mark.slow
def test_a_job_waits_for_nodes_that_are_cut_off_with_the_only_replicas(
    cut_pool: Pool, network: Network, spec: JobSpec, expected: ReferenceResult
) -> None:
    """[5, 10] It says for whom and since when, and goes on when they are back."""
    pool = cut_pool
    job, gate = begin(pool, spec)
    away = sorted(first_stages(pool, job))
    for node_id in away:
        network.cut(node_id)
    pool.wait_for_state(job.id, "WAITING")
    reason = pool.client.get_job(job.id).waiting_reason
    assert f"only on {', '.join(away)}, which cannot be reached since" in reason
    gate.touch()
    for node_id in away:
        network.heal(node_id)
    check_end(pool, job, away, expected)
    assert "holders_returned" in [event.type for event in pool.client.events(job_id=job.id)]


@pytest.mark.slow
def test_all_nodes_may_be_cut_off_at_once(
    cut_pool: Pool, network: Network, spec: JobSpec, expected: ReferenceResult
) -> None:
    """[5, 10] Whoever is back is asked; nobody trains before every layer is there."""
    pool = cut_pool
    job, gate = begin(pool, spec)
    for node_id in pool.nodes:
        network.cut(node_id)
    pool.wait_for("nodes to be silent or lost", lambda: not hears_anybody(pool), timeout=60)
    gate.touch()
    for node_id in pool.nodes:
        network.heal(node_id)
    check_end(pool, job, list(pool.nodes), expected)


def hears_anybody(pool: Pool) -> bool:
    beats = (pool.client.get_node(node_id).heartbeat_time for node_id in pool.nodes)
    newest = max(beat for beat in beats if beat is not None)
    return (datetime.now(UTC) - newest).total_seconds() < SECONDS_CUT
