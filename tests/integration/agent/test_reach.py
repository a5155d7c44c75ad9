"""Whether another machine answers."""

import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from planaria.api.worker.v1.worker_service_pb2 import Reach
from planaria_worker.agent.reach import find_reach
from support.network import Network, NetworkError

pytestmark = pytest.mark.integration

SECONDS = 0.3
LISTENS = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture
def closed() -> str:
    """Return an address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def stopped() -> Iterator[str]:
    """Return the address of a process that listens and is stopped."""
    with subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGSTOP)
        yield f"127.0.0.1:{port}"
        process.kill()


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(["a", "b"]) as network:
            yield network
    except NetworkError as error:
        pytest.skip(f"no network namespaces: {error}")


def test_a_stopped_process_is_reachable(stopped: str) -> None:
    """Its machine is there, and so is what it holds in memory."""
    assert find_reach([stopped], SECONDS) == Reach.REACH_REACHABLE


def test_a_machine_without_its_engines_refuses(closed: str, stopped: str) -> None:
    assert find_reach([closed], SECONDS) == Reach.REACH_REFUSED
    assert find_reach([closed, closed], SECONDS) == Reach.REACH_REFUSED
    assert find_reach([closed, stopped], SECONDS) == Reach.REACH_REACHABLE


def test_a_machine_that_is_cut_off_is_unreachable(network: Network, closed: str) -> None:
    """Nothing answers. What is there besides and refuses shows that it is no silence of ours."""
    network.cut("a")
    began = time.monotonic()
    address = f"{network.address('a')}:9"
    assert find_reach([address], SECONDS) == Reach.REACH_UNREACHABLE
    assert time.monotonic() - began >= SECONDS
    assert find_reach([address, closed], SECONDS) == Reach.REACH_REACHABLE
    network.heal("a")
    assert find_reach([address], 5.0) == Reach.REACH_REFUSED


def test_a_machine_to_which_there_is_no_way_from_here_may_be_there() -> None:
    """What could not even be begun says nothing: nor does it look like a connection."""
    assert find_reach(["255.255.255.255:9"], SECONDS) == Reach.REACH_UNSPECIFIED


def test_who_overslept_has_heard_what_came_meanwhile_and_else_says_nothing(
    network: Network, stopped: str
) -> None:
    """The process was stopped, and perhaps the machine with it."""
    network.cut("a")
    away = f"{network.address('a')}:9"
    for address, reach in (
        (stopped, Reach.REACH_REACHABLE),
        (away, Reach.REACH_UNSPECIFIED),
    ):
        times = itertools.chain([0.0], itertools.repeat(10.0))
        assert find_reach([address], SECONDS, times.__next__) == reach


@pytest.mark.parametrize("addresses", [[], ["no port"], ["no.such.name.invalid:1"], ["::1:x"]])
def test_what_cannot_be_tried_says_nothing(addresses: list[str]) -> None:
    assert find_reach(addresses, SECONDS) == Reach.REACH_UNSPECIFIED


def test_what_is_lacking_here_says_nothing(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """Such as descriptors."""

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    assert find_reach([closed], SECONDS) == Reach.REACH_UNSPECIFIED


def test_no_free_port_here_says_nothing(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: errno.EADDRNOTAVAIL)
    assert find_reach([closed], SECONDS) == Reach.REACH_UNSPECIFIED
