"""A process that is killed is seen to be dead before the kernel has freed its memory."""

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.worker_comm.bounds import BOUND_SECONDS
from planaria_worker.engine.groups.liveness_beacon import LivenessBeacon

pytestmark = pytest.mark.integration

FAREWELL = b"bye\n"

LARGE_PROCESS = """
import socket, sys, time
from planaria_worker.engine.groups.liveness_beacon import LivenessBeacon

memory = bytearray(256 << 20)
memory[::4096] = bytes(len(memory) // 4096)
address = "127.0.0.1", int(sys.argv[1])
plain, held = (socket.create_connection(address) for _ in range(2))
presence = LivenessBeacon(b"bye")
assert presence.hold(held)
held.close()
plain.send(b"r")
time.sleep(1000)
"""


def seconds_until_ends() -> list[float]:
    """Kills a process with much memory; when each of its two connections was seen to end."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        port = str(listener.getsockname()[1])
        process = stack.enter_context(subprocess.Popen([sys.executable, "-c", LARGE_PROCESS, port]))
        stack.callback(process.kill)
        listener.settimeout(BOUND_SECONDS)
        plain, held = (stack.enter_context(listener.accept()[0]) for _ in range(2))
        plain.settimeout(BOUND_SECONDS)
        assert plain.recv(1) == b"r"
        open_ones, ends = [plain, held], []
        start = time.monotonic()
        process.kill()
        while open_ones:
            ended, _, _ = select.select(open_ones, [], [], BOUND_SECONDS)
            assert ended
            ends += [time.monotonic() - start] * len(ended)
            open_ones = [each for each in open_ones if each not in ended]
        return ends


def test_one_of_two_connections_of_a_large_process_ends_before_its_memory_is_freed() -> None:
    """Guard: the thread's own table of files; without it both end at the same time, always.

    With it they may seem to, when the test itself is kept from looking.
    """
    assert any(first < last / 2 for first, last in (seconds_until_ends() for _ in range(5)))


@pytest.fixture
def beacon() -> Iterator[LivenessBeacon]:
    with contextlib.closing(LivenessBeacon(FAREWELL)) as running:
        yield running


def hand_over(beacon: LivenessBeacon) -> socket.socket:
    """Returns the other end of a connection that is held, and by nothing else."""
    other, mine = socket.socketpair()
    with mine:
        assert beacon.hold(mine)
    other.settimeout(BOUND_SECONDS)
    return other


def proc_of_thread() -> Path:
    (thread,) = [each for each in threading.enumerate() if each.name == "liveness-beacon"]
    return Path(f"/proc/self/task/{thread.native_id}")


def num_descriptors_of_thread() -> int:
    return len(list((proc_of_thread() / "fd").iterdir()))


@pytest.fixture
def _open_above() -> Iterator[None]:
    """Something is open with a higher number than whatever comes next."""
    number = fcntl.fcntl(0, fcntl.F_DUPFD, 500)
    yield
    os.close(number)


@pytest.mark.usefixtures("_open_above")  # before the thread begins
def test_nothing_else_is_open_in_the_thread(beacon: LivenessBeacon) -> None:
    """A group's socket that is closed must not stay open there."""
    with hand_over(beacon):
        assert num_descriptors_of_thread() == 2  # what it is handed by, and what it holds


def test_the_farewell_reaches_every_connected_peer(beacon: LivenessBeacon) -> None:
    others = [hand_over(beacon) for _ in range(40)]  # more than there is room for at first
    gone = others[::3]
    for other in gone:
        other.close()
    left = [other for other in others if other not in gone]
    deadline = time.monotonic() + BOUND_SECONDS
    while num_descriptors_of_thread() > 1 + len(left):
        assert time.monotonic() < deadline
        time.sleep(0.001)

    beacon.close()

    for other in left:
        with other:
            assert other.recv(100) == FAREWELL
            assert other.recv(100) == b""


def test_what_peers_send_is_read_and_ends_nothing(beacon: LivenessBeacon) -> None:
    """They send a byte now and then. Guard: it is read, or their buffers would fill."""
    with hand_over(beacon) as other:
        other.setblocking(True)
        for _ in range(1000):
            other.sendall(b"." * 1000)
        assert num_descriptors_of_thread() == 2
        beacon.close()
        assert other.recv(100) == FAREWELL


def test_a_closed_beacon_takes_nothing(beacon: LivenessBeacon) -> None:
    beacon.close()
    other, mine = socket.socketpair()
    with other, mine:
        assert not beacon.hold(mine)


def test_a_thread_without_its_own_files_shares_those_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the kernel is older, or forbids it: all the rest is the same."""
    monkeypatch.setattr(
        "planaria_worker.engine.groups.liveness_beacon._CLOSE_RANGE_UNSHARE", 1 << 30
    )
    with contextlib.closing(LivenessBeacon(FAREWELL)) as beacon:
        other = hand_over(beacon)
        assert num_descriptors_of_thread() == len(list(Path("/proc/self/fd").iterdir()))
    with other:
        assert other.recv(100) == FAREWELL
        assert other.recv(100) == b""


def test_signals_are_left_to_other_threads(beacon: LivenessBeacon) -> None:
    """Guard: the mask. A handler in the thread would write to descriptors it does not have."""
    with hand_over(beacon):
        status = (proc_of_thread() / "status").read_text(encoding="ascii")
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
            assert blocked >> (number - 1) & 1
