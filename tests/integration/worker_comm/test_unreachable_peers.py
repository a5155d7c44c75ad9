"""A machine that vanishes is told from a process that is stopped, though both are silent."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from integration.worker_comm.bounds import BOUND_SECONDS
from planaria_worker.engine.groups.link_failure import LinkFailure, LinkFailureKind
from planaria_worker.engine.layers.copy import wire
from planaria_worker.engine.recovery.failure_detector import GIVE_UP_SECONDS, FailureDetector
from support.network import Network, NetworkError
from unit.worker_comm.layers import SECRET

pytestmark = pytest.mark.integration

PORT = 4000
PEER = """
import socket, sys, threading

def serve(connection):
    connection.recv(int(sys.argv[3]), socket.MSG_WAITALL)
    connection.sendall(len(sys.argv[2]).to_bytes(4, "little") + sys.argv[2].encode())
    while connection.recv(4096):
        pass

with socket.create_server((sys.argv[1], 4000)) as listener:
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
Failures = queue.SimpleQueue[LinkFailure]


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(["a"]) as network:
            yield network
    except NetworkError as error:
        pytest.skip(f"no network namespaces: {error}")


@pytest.fixture
def peer(network: Network) -> Iterator[subprocess.Popen[bytes]]:
    words = [network.address("a"), "peer", str(wire.GREETING.size)]
    with subprocess.Popen(
        [*network.prefix("a"), sys.executable, "-c", PEER, *words], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


@pytest.fixture
def failures() -> Failures:
    return queue.SimpleQueue()


@pytest.fixture
def watched(
    network: Network, peer: subprocess.Popen[bytes], failures: Failures
) -> Iterator[FailureDetector]:
    assert peer.poll() is None
    detector = FailureDetector(job_secret=SECRET, on_failure=failures.put)
    with contextlib.closing(detector):
        detector.watch({"peer": f"{network.address('a')}:{PORT}"})
        deadline = time.monotonic() + BOUND_SECONDS
        while sum(bool(each.received) for each in tuple(detector._peers.values())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield detector


@pytest.mark.usefixtures("watched")
def test_a_machine_that_vanishes_is_unreachable_and_then_given_up(
    network: Network, failures: Failures
) -> None:
    """Guard: the byte now and then; an idle connection would stay silent for ever."""
    network.cut("a")
    first = failures.get(timeout=BOUND_SECONDS)
    assert first.kind is LinkFailureKind.UNREACHABLE
    assert not first.is_final
    second = failures.get(timeout=BOUND_SECONDS)
    assert second.kind is LinkFailureKind.STALLED
    assert (second.detect_time - first.detect_time).total_seconds() >= GIVE_UP_SECONDS
    assert failures.empty()


@pytest.mark.slow
@pytest.mark.usefixtures("watched")
def test_a_machine_that_is_back_soon_is_watched_again(
    network: Network, peer: subprocess.Popen[bytes], failures: Failures
) -> None:
    network.cut("a")
    assert failures.get(timeout=BOUND_SECONDS).kind is LinkFailureKind.UNREACHABLE
    network.heal("a")
    with pytest.raises(queue.Empty):
        failures.get(timeout=GIVE_UP_SECONDS + 1.0)
    peer.kill()
    assert failures.get(timeout=BOUND_SECONDS).kind is LinkFailureKind.ENDED


@pytest.mark.usefixtures("watched")
def test_a_stopped_process_is_not_unreachable(
    peer: subprocess.Popen[bytes], failures: Failures
) -> None:
    """The kernel acknowledges in its place."""
    os.kill(peer.pid, signal.SIGSTOP)
    with pytest.raises(queue.Empty):
        failures.get(timeout=2.0)
    os.kill(peer.pid, signal.SIGCONT)


def test_a_peer_that_takes_no_new_connections_is_given_up_where_groups_need_them(
    watched: FailureDetector, network: Network, failures: Failures
) -> None:
    """The old connections carry on, and show nothing."""
    network.filter("a", "input", "tcp flags syn drop")
    watched.reconnect_unless(lambda: False)
    kinds = [failures.get(timeout=BOUND_SECONDS).kind for _ in range(2)]
    assert kinds == [LinkFailureKind.UNREACHABLE, LinkFailureKind.STALLED]
