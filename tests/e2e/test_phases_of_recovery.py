"""A second failure in each phase of a recovery: an engine dies there, or the coordinator.

The last rank of a pipeline dies when it alone of its pipeline has passed the exchange of a step. So
this one recovery has all phases: the fence and its reports, the rank below that is told of
the commit, the places made ready and changed to, the engine that is prepared in place of the dead
one, and the digests at the end.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from benchmarks.oracle.reference import ReferenceResult
from e2e.matrix.pace import Pace
from planaria.job import JobSpec
from planaria.models import Job
from support.pool import Fired, Pool, Script

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_NODES = 6
STEPS = 40
PACED_STEPS = range(8, 38)


@pytest.fixture(scope="module")
def spec(text: Path) -> JobSpec:
    """Three pipelines of two nodes each."""
    return small_job(
        text,
        training__steps=STEPS,
        training__global_batch_size=12,
        resilience__fault_tolerance=2,
        resources__min_nodes=NUM_NODES,
        resources__max_nodes=NUM_NODES,
        resources__min_nodes_per_pipeline=2,
    )


@pytest.fixture(scope="module")
def expected(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> ReferenceResult:
    return reference_run(spec, tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="module")
def shared_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Engines are held on purpose, and must not count as hanging meanwhile."""
    folder = tmp_path_factory.mktemp("phases") / "cluster"
    with Pool(folder, node_deadline_seconds=10, progress_deadline_seconds=30) as pool:
        pool.start(NUM_NODES)
        yield pool


@pytest.fixture
def pool(shared_pool: Pool) -> Pool:
    shared_pool.heal(NUM_NODES)
    shared_pool.wait_until_idle()
    return shared_pool


@pytest.mark.timeout(300)
@pytest.mark.parametrize("phase", ["prepare", "report", "roll_forward", "digest"])
def test_another_engine_dies_in_a_phase_of_the_recovery(
    pool: Pool, spec: JobSpec, expected: ReferenceResult, phase: str
) -> None:
    """[2, 5, 6] It only starts the next recovery."""
    script = pool.new_script()
    pace = Pace(pool, script, list(pool.nodes), PACED_STEPS)
    job, first = lose_who_has_passed_the_exchange(pool, script, spec)
    second = script.add(at=phase, action="kill", after=first)
    pool.kill_engines(victim(script, first).node_id)
    if phase == "digest":
        pace.end()
    hurt = {victim(script, first).node_id, pace.wait_for_mark(second).node_id}
    pace.end()
    assert_nobody_noticed(pool, job, expected, hurt)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "phase", ["prepare", "report", "roll_forward", "rebuild", "stage", "switch", "digest"]
)
def test_the_coordinator_dies_in_a_phase_of_a_recovery(
    pool: Pool, spec: JobSpec, expected: ReferenceResult, phase: str
) -> None:
    """[2, 6, 7] The recovery is finished, or cleanly redone, by the next coordinator."""
    script = pool.new_script()
    pace = Pace(pool, script, list(pool.nodes), PACED_STEPS)
    job, first = lose_who_has_passed_the_exchange(pool, script, spec)
    gate = script.gate()
    second = script.add(at=phase, action="hold", until=str(gate), after=first)
    pool.kill_engines(victim(script, first).node_id)
    if phase == "digest":
        pace.end()
    pace.wait_for_mark(second)
    pool.kill_coordinator()
    gate.touch()
    pool.start_coordinator()
    pace.end()
    assert_nobody_noticed(pool, job, expected, {victim(script, first).node_id})


def lose_who_has_passed_the_exchange(pool: Pool, script: Script, spec: JobSpec) -> tuple[Job, int]:
    """Hold a last rank after the vote until the other pipelines have committed.

    Returns:
        The job, and the line of the script that holds the engine.
    """
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, 1)
    plan = pool.client.job_plan(job.id).plan
    assert plan is not None
    last_rank = plan.pipelines[0].stages[-1].node_id
    line = script.add(
        at="after_exchange",
        action="hold",
        until=str(script.gate()),  # it never opens
        engine=f"*/{last_rank}/*",
    )
    step = pool.wait_for_mark(script, line).step
    assert step is not None
    pool.wait_for_step(job.id, step + 1)
    return job, line


def victim(script: Script, line: int) -> Fired:
    fired = script.fired(line)
    assert fired is not None
    return fired


def assert_nobody_noticed(
    pool: Pool, job: Job, expected: ReferenceResult, hurt_nodes: set[str]
) -> None:
    end = pool.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == expected.digest
    assert [metrics.loss for metrics in pool.client.job_metrics(job.id)] == expected.losses
    for node_id in pool.nodes.keys() - hurt_nodes:
        engines = pool.engines_of(job.id, node_id)
        assert len(engines) == 1, f"{node_id} had the engines {engines}"
