"""Which process an engine is, known again by an agent that comes later."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria_worker.agent.engine_process import PROCESS_FILE, find_engine, record_process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def change(folder: Path, **facts: object) -> None:
    path = folder / PROCESS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


async def test_an_engine_is_found_and_signalled(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    record_process(tmp_path, sleeper.pid, lambda: None)
    found = find_engine(tmp_path)
    assert found is not None
    assert found.pid == sleeper.pid
    found.signal(signal.SIGKILL)
    assert await found.wait() is None
    assert sleeper.wait() == -signal.SIGKILL
    assert find_engine(tmp_path) is None


@pytest.mark.parametrize(
    "facts",
    [{"boot_id": "another run of the machine"}, {"start_ticks": 1}, {"start_ticks": "soon"}],
)
def test_no_other_process_is_taken_for_it(tmp_path: Path, facts: dict[str, object]) -> None:
    record_process(tmp_path, os.getpid(), lambda: None)
    change(tmp_path, **facts)
    assert find_engine(tmp_path) is None


def test_the_clock_says_nothing_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sets it, and the moment of boot, which is reckoned from it, moves with it."""
    record_process(tmp_path, os.getpid(), lambda: None)
    monkeypatch.setattr("time.time", lambda: 0.0)
    monkeypatch.setattr("psutil.boot_time", lambda: 0.0)
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 0.0)
    assert find_engine(tmp_path) is not None


def test_a_process_that_ended_at_once_is_an_error(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError, match="ended at once"):
        record_process(tmp_path, process.pid, lambda: None)
