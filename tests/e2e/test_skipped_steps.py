"""Steps that cannot be trained are skipped, told of, and end a job only when there are too many."""

import shutil
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_job, reference_run
from planaria.job import JobSpec
from support import own_model
from support.engines.training_jobs import tokens_of
from support.pool import Pool

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SPOILED = [(3, 2), (4, 6), (9, 1), (12, 0), (13, 1), (14, 2)]
SKIPPED = [step for step, _ in SPOILED]
LOST = 4
"""The step in which a node loses its power, having computed a gradient that is infinite."""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "modules"
    folder.mkdir()
    shutil.copy(own_model.__file__, folder / "their_model.py")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def spoiled_spec(text: Path, tmp_path: Path, max_skipped_steps: int) -> JobSpec:
    plain = small_job(text)
    tokens = tokens_of(reference_job(plain, tmp_path / "tokens"), SPOILED)
    return small_job(
        text,
        model={"import_path": "their_model:spoiled_layers", "arguments": {"microbatches": tokens}},
        training__max_skipped_steps=max_skipped_steps,
        resources__min_nodes=4,
        resources__min_nodes_per_pipeline=2,
    )


def test_a_node_dies_in_a_step_that_is_skipped(text: Path, modules: Path, tmp_path: Path) -> None:
    """Before its vote: the digest is that of one process, which skips by its own means."""
    spec = spoiled_spec(text, tmp_path, max_skipped_steps=3)
    expected = reference_run(spec, tmp_path / "oracle")
    with Pool(tmp_path / "cluster", node_deadline_seconds=5) as pool:
        pool.environment |= {"PYTHONPATH": str(modules)}
        pool.start(num_nodes=5)
        script = pool.new_script()
        line = script.add(at="before_exchange", step=LOST, action="hold", until=str(script.gate()))
        job = pool.client.submit(spec)
        pool.kill_node(pool.wait_for_mark(script, line).node_id)
        end = pool.wait_for_end(job.id)
        assert end.state == "SUCCEEDED", end.error
        assert end.final_digest == expected.digest
        assert end.num_skipped_steps == len(SKIPPED)
        rows = list(pool.client.steps(job.id))
        assert [row.step for row in rows if row.skipped_layer is not None] == SKIPPED
        assert [row.loss or 0.0 for row in rows] == expected.losses
        told = [e for e in pool.client.events(job_id=job.id) if e.type == "step_skipped"]
        assert [(e.details["step"], e.details["skipped_in_a_row"]) for e in told] == [
            (3, 1),
            (4, 2),
            (9, 1),
            (12, 1),
            (13, 2),
            (14, 3),
        ]


def test_too_many_in_a_row_end_the_job(text: Path, modules: Path, tmp_path: Path) -> None:
    spec = spoiled_spec(text, tmp_path, max_skipped_steps=2)
    with Pool(tmp_path / "cluster", node_deadline_seconds=5) as pool:
        pool.environment |= {"PYTHONPATH": str(modules)}
        pool.start(num_nodes=4)
        end = pool.wait_for_end(pool.client.submit(spec).id)
        assert end.state == "FAILED"
        assert end.error is not None
        assert end.error.reason == "GRADIENT_OUT_OF_RANGE"
        assert end.error.message.startswith("step 14, layer 0: ")
        assert (end.step, end.num_skipped_steps) == (14, 5)
