"""A node that is slower than the others, on real processes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from planaria.models import Plan
from support import own_model
from support.pool import Pool, node_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_NODES = 6
SLOW_NODE = "node-5"
STEPS = 8
FAILED_STEP = 4


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with Pool(tmp_path / "cluster", node_deadline_seconds=10) as running:
        yield running


def test_lost_microbatches_go_to_the_pipelines_that_are_quick(
    pool: Pool, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the speed that engines measure. The plan takes all nodes to be alike.

    A first stage dies before anybody has computed anything of the step. The quick one of the two
    pipelines that are left can do all that was lost before the slow one has done its own.
    """
    modules = tmp_path / "modules"
    modules.mkdir()
    shutil.copy(own_model.__file__, modules / "their_model.py")
    monkeypatch.syspath_prepend(str(modules))
    spec = small_job(
        text,
        model={"import_path": "their_model:paced_layers"},
        training__steps=STEPS,
        training__global_batch_size=24,
        training__microbatch_size=1,
        resilience__fault_tolerance=2,
        resources__min_nodes=NUM_NODES,
        resources__max_nodes=NUM_NODES,
        resources__min_nodes_per_pipeline=2,
    )
    expected = reference_run(spec, tmp_path / "oracle").digest

    environment = {"PYTHONPATH": str(modules)}
    script = pool.new_script()
    pool.start(NUM_NODES - 1, environment)
    pool.start_node(SLOW_NODE, {**environment, own_model.SLOWNESS: "6"})
    pool.wait_for_nodes(NUM_NODES)
    job = pool.client.submit(spec)
    pool.wait_for_step(job.id, 1)
    plan = pool.client.job_plan(job.id).plan
    assert plan is not None
    victim, slow, quick = _first_stages(plan)
    line = script.add(at="forward", step=FAILED_STEP, action="kill", engine=f"*/{victim}/*")
    end = pool.wait_for_end(job.id)

    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == expected
    assert script.fired(line) is not None
    computed = {
        node: {
            span["microbatch"]
            for trace in pool.trace(job.id)
            if node_of(trace.engine) == node
            for span in trace.spans("forward")
            if span["step"] == FAILED_STEP
        }
        for node in (slow, quick)
    }
    assert len(computed[slow]) == len(computed[quick]) / 2, computed
    assert len(computed[slow]) + len(computed[quick]) == 24


def _first_stages(plan: Plan) -> tuple[str, str, str]:
    """Return the first node of a pipeline to break, of the slow one, and of the third."""
    assert len(plan.pipelines) == 3
    nodes = [[stage.node_id for stage in pipeline.stages] for pipeline in plan.pipelines]
    (slow,) = (each for each in nodes if SLOW_NODE in each)
    victim, quick = (each for each in nodes if SLOW_NODE not in each)
    return victim[0], slow[0], quick[0]
