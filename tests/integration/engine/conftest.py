"""One job and one pool of engines for all tests: importing torch takes longer than most of them."""

from collections.abc import Iterator

import pytest

from benchmarks.oracle.reference import ReferenceResult
from support.engines.cluster import EngineCluster
from support.engines.training_jobs import TrainingJob, training_job
from support.engines.zygote import Zygote


@pytest.fixture(scope="package")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    return training_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="package")
def expected(job: TrainingJob) -> ReferenceResult:
    return job.run_reference()


@pytest.fixture(scope="package")
def cluster(
    job: TrainingJob, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineCluster]:
    with EngineCluster(tmp_path_factory.mktemp("engines"), job.files, zygote) as cluster:
        yield cluster
