"""What a job does on held-out sequences is one number, whatever died while it was computed."""

from pathlib import Path

import pytest

from oracle.from_spec import reference_job
from oracle.reference import train
from planaria.job import CheckpointSpec, EvaluationSpec
from planaria_worker.engine.numerics.pins import pin_numerics
from support.jobs import small_job
from support.pool import Pool

pytestmark = pytest.mark.e2e

STEPS = 10
EVALUATED = [0, 4, 8, STEPS]


def test_nodes_die_while_they_evaluate(text: Path, tmp_path: Path) -> None:
    """[1] [6] One within a step of training, and one in the closing step, which trains nothing.

    Both are caught in the middle of an evaluation and lose their power there. The job's last
    checkpoint is of its last step, whoever is left to write it.
    """
    spec = small_job(
        text,
        training__steps=STEPS,
        resources__min_nodes=5,
        resources__min_nodes_per_pipeline=2,
        evaluation=EvaluationSpec(every_steps=4, fraction=0.1, num_sequences=40),
        checkpoint=CheckpointSpec(path=str(tmp_path / "checkpoints"), every_steps=50),
    )
    pin_numerics()
    expected = train(reference_job(spec, tmp_path / "oracle"))
    assert [*expected.evaluation_losses] == EVALUATED
    with Pool(tmp_path / "cluster", node_deadline_seconds=5) as pool:
        pool.start(num_nodes=5)
        script = pool.new_script()
        held = {"at": "evaluate", "action": "hold", "until": str(script.gate())}
        lines = [script.add(step=step, **held) for step in (4, STEPS)]
        job = pool.client.submit(spec)
        for line in lines:
            pool.kill_node(pool.wait_for_mark(script, line).node_id)
        end = pool.wait_for_end(job.id)
        assert end.state == "SUCCEEDED", end.error
        rows = list(pool.client.steps(job.id))
        lost = [node for each in pool.client.job_recoveries(job.id) for node in each.nodes_lost]
    found = {row.step: row.evaluation_loss for row in rows if row.evaluation_loss is not None}
    assert found == expected.evaluation_losses
    assert [row.loss for row in rows] == [*expected.losses, None]
    assert (end.evaluation_step, end.evaluation_loss) == (STEPS, expected.evaluation_losses[STEPS])
    assert (end.step, end.final_digest) == (STEPS, expected.digest)
    assert len(lost) == len(lines)
    assert (tmp_path / "checkpoints" / f"step-{STEPS:08d}" / "manifest.json").is_file()
