"""A step with a gradient that is not finite is skipped alike by all, whatever fails meanwhile.

The model gives infinity for some microbatches, wherever they are computed. The oracle skips such
steps by its own means: every digest here is that of a job in one process.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import BEFORE, FAILED_STEP, WITHOUT_B, finish, kept
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import DigestLayers, RollForward
from planaria.api.worker.v1.report_pb2 import EngineFault
from support.engines import checkpoints
from support.engines.checkpoints import beginning_from, checkpointed
from support.engines.cluster import EngineCluster
from support.engines.handover import Handover
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import TrainingJob, spoiled_job
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration

NUM_STEPS = 6
SPOILED = [(0, 5), (2, 1), (3, 4)]
"""In the step that fails, it is a microbatch of the pipeline that breaks."""
SKIPPED = [0, 2, 3]
KEPT = [3, 4, 5]
PAIR = [("a", 3), ("b", 4)]
OTHER_PAIR = [("c", 5), ("d", 2)]
AFTER = [Pipeline(OTHER_PAIR, [0, 1, 2, 3, 4, 5])]
FINISHING = [Pipeline(OTHER_PAIR, [0, 1, 2, 3, 4, 5], in_flight=[*KEPT, 0, 1, 2])]
WITH_E = [
    Pipeline(PAIR, [0, 1], keeps=True),
    Pipeline(OTHER_PAIR, [2, 3], keeps=True),
    Pipeline([("e", 7)], [4, 5]),
]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    return spoiled_job(tmp_path_factory.mktemp("job"), SPOILED, num_steps=NUM_STEPS)


@pytest.fixture(scope="module")
def expected(job: TrainingJob) -> ReferenceResult:
    return job.run_reference()


@pytest.fixture(scope="module")
def shared(
    job: TrainingJob, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineCluster]:
    with EngineCluster(tmp_path_factory.mktemp("engines"), job.files, zygote) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: EngineCluster) -> Iterator[EngineCluster]:
    """What an engine was armed with must not meet the next test."""
    yield shared
    for engine in shared.engines.values():
        engine.close()


def skipped_steps(cluster: EngineCluster) -> list[int]:
    return sorted({r.record.step for r in cluster.step_reports() if r.record.num_skipped})


def digests_of(cluster: EngineCluster, name: str) -> list[bytes]:
    needed = [layers for p in BEFORE for n, layers in cluster.needs(p).items() if n == name]
    digested = cluster.ask(name, digest_layers=DigestLayers(layers=needed[0])).digested
    return [layer.sha256 for layer in digested.layers]


def wait_until_refused(cluster: EngineCluster, name: str) -> EngineFault:
    """Waits for a fault that ends the job; a broken pipeline's may come before."""
    return cluster.wait_for(
        f"refusal by {name}",
        lambda: next((e.fault for e in cluster.engines[name].events if e.fault.fatal), None),
    )


def undisturbed(folder: Path, job: TrainingJob, zygote: Zygote) -> tuple[list[int], str]:
    """The steps that four engines skip, and the digest that they end with."""
    with EngineCluster(folder, job.files, zygote) as cluster:
        cluster.prepare(*"abcd")
        cluster.train(BEFORE)
        cluster.wait_until_finished()
        return skipped_steps(cluster), cluster.digest(BEFORE)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"place": "backward"}, marks=pytest.mark.slow),
        pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param({"is_tied": True, "place": "backward"}, marks=pytest.mark.slow),
        pytest.param({"is_tied": True, "dtype": "bfloat16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_steps_that_cannot_be_trained_are_skipped(
    tmp_path: Path, zygote: Zygote, options: Mapping[str, Any]
) -> None:
    job = spoiled_job(tmp_path / "job", SPOILED, num_steps=NUM_STEPS, **options)
    expected = job.run_reference()
    assert undisturbed(tmp_path / "engines", job, zygote) == (SKIPPED, expected.digest)


def test_the_fast_mode_skips_the_same_steps(tmp_path: Path, zygote: Zygote) -> None:
    """Replicas are equal there as well: `digest` compares them."""
    job = spoiled_job(tmp_path / "job", SPOILED, num_steps=NUM_STEPS, reproducible=False)
    skipped, _ = undisturbed(tmp_path / "engines", job, zygote)
    assert skipped == SKIPPED


@pytest.mark.parametrize(
    "failpoint",
    [
        {"at": "before_exchange"},
        *(
            pytest.param(place, marks=pytest.mark.slow)
            for place in (
                {"at": "forward", "microbatch": 1},
                {"at": "reduce"},
                {"at": "after_exchange"},
                {"at": "before_update"},
            )
        ),
    ],
    ids=lambda failpoint: failpoint["at"],
)
def test_an_engine_is_killed_within_a_step_that_is_skipped(
    cluster: EngineCluster, expected: ReferenceResult, failpoint: dict[str, object]
) -> None:
    fatal = {"action": "kill", "step": FAILED_STEP, **failpoint}
    cluster.prepare(*"abcd", failpoints={"b": [fatal]})
    cluster.train(BEFORE)
    cluster.wait_until_dead("b")
    cluster.recover(WITHOUT_B)
    finish(cluster, expected, WITHOUT_B)
    assert skipped_steps(cluster) == SKIPPED


@pytest.mark.parametrize("place", ["backward", pytest.param("reduce", marks=pytest.mark.slow)])
def test_a_healthy_pipeline_finishes_a_step_that_is_skipped(
    cluster: EngineCluster, expected: ReferenceResult, place: str
) -> None:
    """It computes the microbatch that spoils the step in the place of the broken one."""
    fatal = {"at": place, "action": "kill", "step": FAILED_STEP}
    cluster.prepare(*"abcd", failpoints={"b": [fatal]})
    cluster.train(BEFORE)
    cluster.wait_until_dead("b")
    cluster.committed_steps = FAILED_STEP
    assert kept(cluster.fence(["b"])) == {"a": [], "c": KEPT, "d": KEPT}
    cluster.place(FINISHING, followers={"a": range(3)})
    finish(cluster, expected, AFTER, followers={"a": range(3)})
    assert skipped_steps(cluster) == SKIPPED


def test_a_late_engine_is_rolled_forward_without_sums(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """c, the last rank, has passed the commit; b dies having passed, before it tells a."""
    plan = [Pipeline([("a", 2), ("b", 3), ("c", 2)], [0, 1, 2]), Pipeline([("d", 7)], KEPT)]
    never = str(tmp_path / "never")
    held_back = {"at": "after_exchange", "action": "hold", "step": FAILED_STEP, "until": never}
    cluster.prepare(*"abcd", failpoints={"b": [held_back]})
    cluster.train(plan)
    for name in "cd":
        cluster.wait_for_step(name, FAILED_STEP)
    cluster.engines["b"].kill()
    cluster.wait_until_dead("b")
    reports = cluster.quiesce()
    assert {name: report.committed_steps for name, report in reports.items()} == {
        "a": FAILED_STEP,
        "c": FAILED_STEP + 1,
        "d": FAILED_STEP + 1,
    }
    record = reports["c"].last_commit
    assert (record.num_skipped, record.skipped_layer) == (1, 0)
    held = cluster.roll_forward(reports)
    assert held["a"] == {0: FAILED_STEP + 1, 1: FAILED_STEP + 1}  # no layer is stale
    after = [Pipeline([("a", 2), ("c", 5)], [0, 2, 4]), Pipeline([("d", 7)], [1, 3, 5])]
    cluster.copy_missing(after, held)
    cluster.activate(after)
    finish(cluster, expected, after)
    assert skipped_steps(cluster) == SKIPPED


def test_a_step_that_was_skipped_needs_no_sums_at_all(cluster: EngineCluster) -> None:
    """Any layer of the version before is of the next version as well, whatever was computed."""
    cluster.prepare(*"abcd")
    cluster.train(BEFORE)
    cluster.wait_for_step("d", 1)
    reports = cluster.quiesce()
    for name, report in reports.items():
        before = digests_of(cluster, name)
        record = report.last_commit
        record.step, record.num_skipped = report.committed_steps, 1
        done = cluster.ask(name, roll_forward=RollForward(record=record)).rolled_forward
        assert done.committed_steps == report.committed_steps + 1
        assert not done.stale_layers
        assert digests_of(cluster, name) == before


@pytest.mark.parametrize("step", [FAILED_STEP, pytest.param(4, marks=pytest.mark.slow)])
def test_a_joiner_follows_steps_that_are_skipped(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path, step: int
) -> None:
    """It switches at the commit of a skipped step, or has followed two of them before."""
    go = tmp_path / "go"
    early = tmp_path / "early"
    held = [
        {"at": "forward", "action": "hold", "step": at, "until": str(path)}
        for at, path in ((1, early), (step, go))
    ]
    cluster.prepare(*"abcde", failpoints={"a": held})
    cluster.train(BEFORE)
    handover = Handover(cluster, BEFORE, WITH_E)
    handover.stage()
    early.touch()
    handover.switch_after(step, go)
    handover.wait_until_switched()
    finish(cluster, expected, WITH_E)
    assert skipped_steps(cluster) == SKIPPED


def test_a_checkpoint_after_a_skipped_step_continues_with_the_same_bits(
    job: TrainingJob, expected: ReferenceResult, tmp_path: Path, zygote: Zygote
) -> None:
    files = checkpointed(job.files, tmp_path / "checkpoints", every_steps=4)
    with EngineCluster(tmp_path / "before", files, zygote) as cluster:
        cluster.prepare(*"abcd")
        cluster.train(BEFORE)
        layers = checkpoints.wait_until_written(cluster, 4)
        sealed = checkpoints.seal(cluster, "b", 4, layers).checkpoint_sealed
    later = beginning_from(job.files, Path(sealed.path))
    with EngineCluster(tmp_path / "after", later, zygote) as cluster:
        cluster.prepare(*"cd")
        cluster.train(AFTER)
        finish(cluster, expected, AFTER)


def test_too_many_in_a_row_fail_the_job_and_name_the_layer(tmp_path: Path, zygote: Zygote) -> None:
    """The count outlives a recovery with a new engine, which does not know of the steps before."""
    spoiled = [(1, 0), (3, 1), (4, 2), (5, 3)]
    job = spoiled_job(tmp_path / "job", spoiled, num_steps=8, place="backward", max_skipped_steps=2)
    before = [Pipeline(PAIR, [0, 1, 2]), Pipeline([("c", 7)], KEPT)]
    after = [Pipeline([("c", 3), ("e", 4)], [0, 1, 2, 3, 4, 5])]
    fatal = {"at": "backward", "action": "kill", "step": 4}
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        cluster.prepare(*"abce", failpoints={"a": [fatal]})
        cluster.train(before)
        cluster.wait_until_dead("a")
        cluster.recover(after)
        faults = [wait_until_refused(cluster, name) for name in "ce"]
        assert skipped_steps(cluster) == [1, 3, 4]
    for fault in faults:
        assert fault.failure.reason == ErrorReason.ERROR_REASON_GRADIENT_OUT_OF_RANGE
        assert fault.failure.metadata == {"step": "5", "layer": "0"}
