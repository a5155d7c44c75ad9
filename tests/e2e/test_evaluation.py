"""What a job does on held-out sequences is one number, whatever died while it was computed."""

from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from benchmarks.oracle.reference import ReferenceResult
from planaria.job import CheckpointSpec, EvaluationSpec
from planaria.models import Job
from support.pool import Pool

pytestmark = pytest.mark.e2e

STEPS = 6
EVALUATED = [0, 4, STEPS]


@pytest.mark.slow
def test_nodes_die_while_they_evaluate(text: Path, tmp_path: Path) -> None:
    """[1] [6] One within a step of training, and one in the closing step, which trains nothing.

    Each is caught in the middle of an evaluation and loses its power there; the second job has the
    nodes that the first one has left. The last checkpoint is of the last step, whoever writes it.
    """
    checkpoints = tmp_path / "checkpoints"
    spec = small_job(
        text,
        training__steps=STEPS,
        resources__min_nodes=4,
        resources__min_nodes_per_pipeline=2,
        evaluation=EvaluationSpec(every_steps=4, fraction=0.1, num_sequences=40),
    )
    expected = reference_run(spec, tmp_path / "oracle")
    assert [*expected.evaluation_losses] == EVALUATED
    with Pool(tmp_path / "cluster", node_deadline_seconds=5) as pool:
        pool.start(num_nodes=5)
        for step in (4, STEPS):
            script = pool.new_script()
            held = {"at": "evaluate", "action": "hold", "until": str(script.gate())}
            line = script.add(step=step, **held)
            checkpoint = CheckpointSpec(path=str(checkpoints / str(step)), every_steps=50)
            job = pool.client.submit(spec.model_copy(update={"checkpoint": checkpoint}))
            victim = pool.wait_for_mark(script, line).node_id
            pool.kill_node(victim)
            check(pool, pool.wait_for_end(job.id), expected, victim)
            pool.wait_until_idle()
            written = checkpoints / str(step) / f"step-{STEPS:08d}" / "manifest.json"
            assert written.is_file()


def check(pool: Pool, end: Job, expected: ReferenceResult, victim: str) -> None:
    """The job has done what one process does, and lost one node."""
    assert end.state == "SUCCEEDED", end.error
    rows = list(pool.client.steps(end.id))
    found = {row.step: row.evaluation_loss for row in rows if row.evaluation_loss is not None}
    assert found == expected.evaluation_losses
    assert [row.loss for row in rows] == [*expected.losses, None]
    assert (end.evaluation_step, end.evaluation_loss) == (STEPS, expected.evaluation_losses[STEPS])
    assert (end.step, end.final_digest) == (STEPS, expected.digest)
    assert [n for each in pool.client.job_recoveries(end.id) for n in each.nodes_lost] == [victim]
