"""An engine that trains lacks memory while its next plan is staged: it is not lost for it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from e2e.matrix.pace import Pace
from planaria.job import JobSpec
from support.pool import Pool, Script

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_NODES = 4
JOINING = f"node-{NUM_NODES}"
SHORT = "node-1"
"""The node that lacks memory."""
STEPS = 40
PACED_STEPS = range(4, 36)


@pytest.fixture(scope="module")
def spec(text: Path) -> JobSpec:
    """A job that a further node makes faster."""
    return small_job(
        text,
        training__steps=STEPS,
        training__global_batch_size=10,
        resources__min_nodes=NUM_NODES,
    )


@pytest.fixture(scope="module")
def digest(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> str:
    return reference_run(spec, tmp_path_factory.mktemp("oracle")).digest


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Engines are held on purpose, and must not count as hanging meanwhile."""
    with Pool(tmp_path / "cluster", node_deadline_seconds=10, progress_deadline_seconds=60) as pool:
        pool.start(NUM_NODES)
        yield pool


def lack_in_staging(script: Script, _gate: Path) -> int:
    return script.add(at="stage", action="no_memory", engine=f"*/{SHORT}/*")


def lack_in_a_pass(script: Script, gate: Path) -> int:
    """While all wait for the joining engine, which is held in staging."""
    held = script.add(at="stage", action="hold", until=str(gate), engine=f"*/{JOINING}/*")
    return script.add(at="forward", action="no_memory", engine=f"*/{SHORT}/*", after=held)


@pytest.mark.parametrize("lack", [lack_in_staging, lack_in_a_pass])
def test_an_engine_without_memory_for_its_next_plan_trains_on(
    pool: Pool, spec: JobSpec, digest: str, lack: Callable[[Script, Path], int]
) -> None:
    """[10] The change is made parked, with all engines that there were, and the same model."""
    script = pool.new_script()
    pace = Pace(pool, script, list(pool.nodes), PACED_STEPS)
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, PACED_STEPS.start)
    engines = {node_id: pool.engine_pids(node_id) for node_id in pool.nodes}
    gate = script.gate()
    line = lack(script, gate)
    pool.start_node(JOINING)
    fired = pace.wait_for_mark(line)
    gate.touch()
    pace.wait_for(
        f"{JOINING} to have joined",
        lambda: any(JOINING in each.nodes_joined for each in pool.client.job_recoveries(job.id)),
    )
    assert {node_id: pool.engine_pids(node_id) for node_id in engines} == engines
    pace.end()
    end = pool.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == digest
    told = [event.type for event in pool.client.events(job_id=job.id)]
    assert not {"engine_lost", "node_refused", "node_left_out", "job_waiting"} & set(told)
    joined = [each for each in pool.client.job_recoveries(job.id) if each.nodes_joined]
    assert [each.nodes_joined for each in joined] == [(JOINING,)]
    assert fired.node_id == SHORT
