"""Clusters for end-to-end tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import Cluster
from support.jobs import write_text


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster that has not been started."""
    with Cluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of real English text."""
    return write_text(tmp_path_factory.mktemp("corpus") / "python.txt")
