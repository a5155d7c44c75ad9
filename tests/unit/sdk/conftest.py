"""A coordinator that answers as a test says, and what users have with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.cli.main import main
from unit.sdk.cli import Run
from unit.sdk.fake_api import FakeApi, serving
from unit.sdk.samples import JOB_FILE


@pytest.fixture(autouse=True)
def _no_cluster_of_the_developer(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing here may find, or touch, a cluster that runs on this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("share")))
    monkeypatch.delenv("PLANARIA_ADDRESS", raising=False)
    monkeypatch.delenv("PLANARIA_TOKEN", raising=False)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """A coordinator that PLANARIA_ADDRESS leads to."""
    with serving() as fake:
        monkeypatch.setenv("PLANARIA_ADDRESS", fake.url)
        monkeypatch.setenv("PLANARIA_TOKEN", "the-token")
        yield fake


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB_FILE)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; return its exit status, standard output and standard error."""

    def invoke(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return invoke
