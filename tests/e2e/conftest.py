"""Clusters for end-to-end tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.common import cluster as clusters
from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import write_text
from benchmarks.common.processes import start_process
from benchmarks.oracle.from_spec import reference_run
from planaria.job import JobSpec
from support.engines.zygote import Zygote

NUM_NODES = 5


@pytest.fixture(scope="session", autouse=True)
def _forks(zygote: Zygote) -> Iterator[None]:
    """Start planners, coordinators and agents without importing anything for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "start_process", zygote.start_service)
        yield


@pytest.fixture
def no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start them as a user does."""
    monkeypatch.setattr(clusters, "start_process", start_process)


@pytest.fixture(scope="package")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster for all tests that need nothing special: to start one takes its time.

    Its deadline for decisions is so long that nobody can have waited for it.
    """
    folder = tmp_path_factory.mktemp("shared") / "cluster"
    with Cluster(folder, decision_deadline_seconds=3600) as cluster:
        cluster.start(NUM_NODES)
        yield cluster


@pytest.fixture
def five_nodes(shared_cluster: Cluster) -> Cluster:
    """Return a healthy cluster of five nodes, whatever the test before did to it."""
    shared_cluster.heal(NUM_NODES)
    return shared_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster of its own that has not been started."""
    with Cluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of real English text."""
    return write_text(tmp_path_factory.mktemp("corpus") / "python.txt")


@pytest.fixture(scope="session")
def digest_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[JobSpec], str]:
    """Return what gives the digest of an undisturbed run, made once for jobs that train alike."""
    known: dict[str, str] = {}

    def digest(spec: JobSpec) -> str:
        sections = (spec.model, spec.data, spec.training)
        key = "".join(section.model_dump_json() for section in sections)
        if key not in known:
            known[key] = reference_run(spec, tmp_path_factory.mktemp("oracle")).digest
        return known[key]

    return digest
