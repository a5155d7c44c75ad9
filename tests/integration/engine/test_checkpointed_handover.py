"""A checkpoint is due at the very commit that changes the plan: it is of the plan before."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.handover.staged import NUM_STEPS, STEP, WITH_E, begin, hand_over
from integration.engine.scenarios import finish
from planaria_worker.engine.layers.checkpoint.manifest import Manifest
from support.engines import checkpoints
from support.engines.checkpoints import beginning_from, checkpointed
from support.engines.cluster import EngineCluster
from support.engines.handover import Handover
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import TrainingJob, training_job
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration

VERSION = STEP + 1
MOVED = [Pipeline([("c", 3), ("e", 4)], [0, 1, 2]), Pipeline([("a", 7)], [3, 4, 5])]
"""Everybody changes places, e enters, and b and d leave."""
ALONE = [Pipeline([("a", 7)], [0, 1, 2, 3, 4, 5])]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    return training_job(tmp_path_factory.mktemp("job"), num_steps=NUM_STEPS)


@pytest.fixture(scope="module")
def expected(job: TrainingJob) -> ReferenceResult:
    return job.run_reference()


def takers(cluster: EngineCluster, version: int) -> dict[int, str]:
    """Who writes each layer; nobody writes one that another writes."""
    found: dict[int, str] = {}
    for name, said in checkpoints.reports(cluster, version).items():
        for report in said:
            for layer in report.taken.layers:
                assert found.setdefault(layer, name) == name, f"layer {layer} is written twice"
    return found


def change_at_a_checkpoint(
    cluster: EngineCluster, after: Sequence[Pipeline], folder: Path
) -> Handover:
    """Changes the plan at the commit of VERSION, and checks who writes it."""
    go = folder / "go"
    begin(cluster, go, joining="e")
    handover = hand_over(cluster, go, after)
    handover.wait_until_switched()
    assert takers(cluster, VERSION).keys() == set(range(7)), "layers are not written"
    return handover


@pytest.mark.parametrize(
    "after", [WITH_E, pytest.param(MOVED, marks=pytest.mark.slow)], ids=["join", "all move"]
)
def test_owners_of_the_old_plan_write_a_checkpoint_that_can_be_resumed(
    tmp_path: Path,
    job: TrainingJob,
    zygote: Zygote,
    expected: ReferenceResult,
    after: list[Pipeline],
) -> None:
    files = checkpointed(job.files, tmp_path / "runs", every_steps=VERSION)
    with EngineCluster(tmp_path, files, zygote) as cluster:
        change_at_a_checkpoint(cluster, after, tmp_path)
        assert set(takers(cluster, VERSION).values()) <= set("abcd"), "e had no place yet"
        layers = checkpoints.wait_until_written(cluster, VERSION)
        sealed = checkpoints.seal(cluster, "e", VERSION, layers).checkpoint_sealed
        finish(cluster, expected, after)
        checkpoints.wait_until_written(cluster, NUM_STEPS)
        assert "e" in takers(cluster, NUM_STEPS).values()
    manifest = Manifest.read(Path(sealed.path))
    assert (manifest.step, len(manifest.layers)) == (VERSION, 7)
    resumed = beginning_from(job.files, Path(sealed.path))
    with EngineCluster(tmp_path / "again", resumed, zygote) as cluster:
        cluster.prepare("a")
        cluster.train(ALONE)
        cluster.wait_until_finished()
        assert cluster.digest(ALONE) == expected.digest
