"""Logging never fails and never waits."""

import subprocess
import sys
import threading
from io import StringIO

import pytest

from planaria_common import log_writer
from planaria_common.log_writer import LogWriter


class Disk(StringIO):
    """A stream that is full, or hangs, for as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def write(self, text: str) -> int:
        self.goes_on.wait()
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def dropped() -> list[int]:
    return []


@pytest.fixture
def writer(disk: Disk, dropped: list[int]) -> LogWriter:
    return LogWriter(disk, dropped.append)


def test_lines_are_written_in_their_order(writer: LogWriter, disk: Disk) -> None:
    for number in range(100):
        writer.write(f"{number}\n")
    writer.drain(30)
    assert disk.getvalue().split() == [str(number) for number in range(100)]


def test_a_full_disk_costs_lines_and_says_how_many(
    writer: LogWriter, disk: Disk, dropped: list[int]
) -> None:
    disk.is_full = True
    for _ in range(3):
        writer.write("lost\n")
    writer.drain(30)
    assert dropped == []
    disk.is_full = False
    writer.write("kept\n")
    writer.drain(30)
    assert disk.getvalue() == "kept\n"
    assert dropped == [3]


def test_a_hanging_disk_keeps_nobody_waiting(
    writer: LogWriter, disk: Disk, dropped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is bounded; whoever ends the process does not wait for long."""
    monkeypatch.setattr(log_writer, "MAX_WAITING_LINES", 10)
    disk.goes_on.clear()
    for number in range(100):
        writer.write(f"{number}\n")
    writer.drain(0.01)
    disk.goes_on.set()
    writer.drain(30)
    num_written = len(disk.getvalue().split())
    assert num_written in (10, 11)
    assert sum(dropped) == 100 - num_written


_FORK = """
import os, sys
from planaria_common.log_writer import LogWriter

writer = LogWriter(sys.stdout, lambda _: None)
writer.write("parent\\n")
writer.drain(30)
child = os.fork()
if child == 0:
    writer.write("child\\n")
    writer.drain(30)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_logs_by_itself() -> None:
    """The thread of its parent is not there."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "parent\nchild\n"
