"""Evaluation on held-out sequences: the oracle's numbers bit for bit, whoever computed them.

Seven evaluation microbatches ride on the six of a step, in steps 0, 2, 4 and the closing one, 5.
Engine b of the first pipeline fails in one that evaluates; those of the second are armed to die if
they compute anything of that step a second time.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import BEFORE, finish
from planaria.api.common.v1.errors_pb2 import ErrorReason
from support.engines import checkpoints
from support.engines.checkpoints import beginning_from, checkpointed
from support.engines.cluster import EngineCluster
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import TrainingJob, training_job
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration

EVALUATED = [0, 2, 4, 5]
CLOSING_STEP = 5
HELD_OUT = {"every_steps": 2, "fraction": 0.2, "num_sequences": 14}
AFTER = [Pipeline([("c", 5), ("d", 2)], range(6))]
FINISHING = [Pipeline([("c", 5), ("d", 2)], range(6), in_flight=[3, 4, 5, 0, 1, 2])]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    return training_job(tmp_path_factory.mktemp("job"), evaluation=HELD_OUT)


@pytest.fixture(scope="module")
def expected(job: TrainingJob) -> ReferenceResult:
    return job.run_reference()


@pytest.fixture(scope="module")
def cluster(
    job: TrainingJob, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineCluster]:
    with EngineCluster(tmp_path_factory.mktemp("engines"), job.files, zygote) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _disarm(cluster: EngineCluster) -> Iterator[None]:
    """What an engine was armed with must not meet the next test."""
    yield
    for engine in cluster.engines.values():
        engine.close()


def once_only(step: int) -> list[dict[str, object]]:
    """Deadly for whoever computes an evaluation microbatch of a step again."""
    places = ({"at": "evaluate", "microbatch": m, "skip": 1} for m in range(7))
    return [{"action": "kill", "step": step, **place} for place in places]


def lose_b(cluster: EngineCluster, step: int, failpoint: dict[str, object]) -> None:
    """b dies in a step that evaluates; the pipeline of c and d finishes it."""
    fatal = {"action": "kill", "step": step, **failpoint}
    cluster.prepare(
        "a", "b", "c", "d", failpoints={"b": [fatal], "c": once_only(step), "d": once_only(step)}
    )
    cluster.train(BEFORE)
    cluster.wait_until_dead("b")
    reports = cluster.fence(["b"])
    assert {report.committed_steps for report in reports.values()} == {step}
    assert {tuple(reports[name].kept_microbatches) for name in "cd"} == {(3, 4, 5)}
    cluster.committed_steps = step
    cluster.place(FINISHING, followers={"a": range(3)})


def test_pipelines_of_different_cuts(cluster: EngineCluster, expected: ReferenceResult) -> None:
    cluster.prepare("a", "b", "c", "d")
    cluster.train(BEFORE)
    finish(cluster, expected, BEFORE)
    assert [*cluster.evaluation_losses()] == EVALUATED
    assert len(cluster.losses()) == CLOSING_STEP


@pytest.mark.parametrize(
    ("step", "failpoint"),
    [
        (2, {"at": "evaluate", "microbatch": 1}),
        pytest.param(2, {"at": "reduce"}, marks=pytest.mark.slow),
        (2, {"at": "before_exchange"}),
        pytest.param(CLOSING_STEP, {"at": "evaluate", "microbatch": 2}, marks=pytest.mark.slow),
        (CLOSING_STEP, {"at": "reduce"}),
        pytest.param(CLOSING_STEP, {"at": "before_exchange"}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value["at"] if isinstance(value, dict) else str(value),
)
def test_a_step_that_evaluates_is_finished_by_a_healthy_pipeline(
    cluster: EngineCluster, expected: ReferenceResult, step: int, failpoint: dict[str, object]
) -> None:
    """[1] What the broken pipeline evaluated is evaluated again, and nothing else."""
    lose_b(cluster, step, failpoint)
    finish(cluster, expected, AFTER)


def test_the_closing_step_is_rolled_forward(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """[2] d dies before it has told c: c commits from the record of the others, loss and all."""
    never = str(tmp_path / "never")
    held = {"at": "after_exchange", "action": "hold", "step": CLOSING_STEP, "until": never}
    cluster.prepare("a", "b", "c", "d", failpoints={"d": [held]})
    cluster.train(BEFORE)
    cluster.wait_until_finished("a", "b")
    cluster.engines["d"].kill()
    cluster.wait_until_dead("d")
    reports = cluster.quiesce()
    assert [reports[name].committed_steps for name in "abc"] == [6, 6, 5]
    cluster.roll_forward(reports)
    assert CLOSING_STEP in {report.record.step for report in cluster.step_reports("c")}
    for report in cluster.quiesce().values():
        assert report.last_commit.evaluation_loss == expected.evaluation_losses[CLOSING_STEP]
        assert {layer.version for layer in report.layers} == {CLOSING_STEP + 1}
    assert cluster.digest([Pipeline([("c", 5), ("b", 2)], [])]) == expected.digest


@pytest.mark.slow
def test_a_job_goes_on_from_a_checkpoint_with_the_same_sequences_held_out(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, expected: ReferenceResult
) -> None:
    """On another number of nodes; and behind the closing step an engine has the last version."""
    files = checkpointed(job.files, tmp_path / "runs")
    with EngineCluster(tmp_path / "before", files, zygote) as cluster:
        cluster.prepare("a", "b", "c", "d")
        cluster.train(BEFORE)
        layers = checkpoints.wait_until_written(cluster, 2)
        assert checkpoints.seal(cluster, "b", 2, layers).HasField("checkpoint_sealed")
        cluster.wait_until_finished()
        taken = checkpoints.write(cluster, "a", CLOSING_STEP, [0, 1, 2])
        assert list(taken.checkpoint_taken.layers) == [0, 1, 2]
        layers = checkpoints.wait_until_written(cluster, CLOSING_STEP)
        assert checkpoints.seal(cluster, "c", CLOSING_STEP, layers).HasField("checkpoint_sealed")
    resumed = beginning_from(job.files, tmp_path / "runs" / "step-00000002")
    with EngineCluster(tmp_path / "after", resumed, zygote) as cluster:
        cluster.prepare("c", "d")
        cluster.train(AFTER)
        cluster.wait_until_finished()
        assert cluster.digest(AFTER) == expected.digest
        later = {step: loss for step, loss in expected.evaluation_losses.items() if step >= 2}
        assert cluster.evaluation_losses() == later


def test_a_job_with_too_little_to_evaluate_on_says_so_before_it_starts(
    tmp_path: Path, job: TrainingJob, zygote: Zygote
) -> None:
    spec = {**job.files.spec, "evaluation": {"fraction": 0.001}}
    with EngineCluster(tmp_path, replace(job.files, spec=spec), zygote) as cluster:
        failure = cluster.start("a").failure
        assert failure.reason == ErrorReason.ERROR_REASON_DATA_UNUSABLE
        assert failure.message.startswith("evaluation.fraction: gives 0 of ")
