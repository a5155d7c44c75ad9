"""A job of more steps than the other tests of engines have, on engines of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.handover.staged import NUM_STEPS
from support.engines.cluster import EngineCluster
from support.engines.training_jobs import TrainingJob, training_job
from support.engines.zygote import Zygote


@pytest.fixture(scope="package")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    return training_job(tmp_path_factory.mktemp("job"), num_steps=NUM_STEPS)


@pytest.fixture(scope="package")
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


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file whose creation lets the held engine begin step STEP."""
    return tmp_path / "go"
