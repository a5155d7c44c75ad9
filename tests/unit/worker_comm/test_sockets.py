"""Connections are found by address, and cutting one wakes whoever is blocked in it."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria_worker.addresses import Address
from planaria_worker.engine.groups.transport.sockets import (
    cut,
    find_connections,
    listening_addresses,
    open_sockets,
)

HOST = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as server:
        yield server


@contextlib.contextmanager
def connection_to(listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            yield near, far


def descriptors() -> set[str]:
    return {link.name for link in Path("/proc/self/fd").iterdir()}


def at_port(listener: socket.socket) -> list[socket.socket]:
    """The ends whose own port is the listener's."""
    own: Address = listener.getsockname()
    return find_connections(lambda local, remote: local == own)


def test_only_what_is_wanted_is_found(listener: socket.socket) -> None:
    """Not the listening socket, other connections, Unix sockets, files; and no descriptor stays."""
    before = descriptors()
    pair = socket.socketpair()
    with (
        socket.create_server((HOST, 0)) as other,
        connection_to(listener) as (_, far),
        connection_to(other),
        pair[0],
        pair[1],
    ):
        (found,) = at_port(listener)
        with found:
            assert found.getpeername() == far.getpeername()
            assert os.fstat(found.fileno()).st_ino == os.fstat(far.fileno()).st_ino
    assert descriptors() == before


def test_a_duplicate_counts_once(listener: socket.socket) -> None:
    """Guard: connections are told apart by inode."""
    with connection_to(listener) as (_, far), far.dup():
        found = at_port(listener)
        assert len(found) == 1
        found[0].close()


def test_an_ipv4_peer_of_a_dual_stack_socket_is_found(listener: socket.socket) -> None:
    """The rendezvous store connects so. Guard: `plain`."""
    own: Address = listener.getsockname()
    with socket.socket(socket.AF_INET6) as near:
        near.connect(("::ffff:127.0.0.1", own[1]))
        found = find_connections(lambda local, remote: remote == own)
        assert len(found) == 1
        found[0].close()


def test_sockets_open_before_are_ignored(listener: socket.socket) -> None:
    own: Address = listener.getsockname()
    with connection_to(listener):
        before = open_sockets()
        with connection_to(listener) as (_, far), socket.create_server((HOST, 0)) as another:
            found = find_connections(lambda local, remote: local == own, before)
            assert [each.getpeername() for each in found] == [far.getpeername()]
            found[0].close()
            assert listening_addresses(before) == {another.getsockname()}


def test_listening_addresses(listener: socket.socket) -> None:
    with connection_to(listener) as (near, _):
        assert listener.getsockname() in listening_addresses()
        assert near.getsockname() not in listening_addresses()


def test_cutting_wakes_both_ends(listener: socket.socket) -> None:
    """A thread of ours and the peer, each blocked in a receive, return; others stay connected."""
    with connection_to(listener) as (near, far), connection_to(listener) as (other, other_far):
        received = []
        threads = [
            threading.Thread(target=lambda end=end: received.append(end.recv(1)))
            for end in (near, far)
        ]
        for thread in threads:
            thread.start()
        own: Address = near.getsockname()
        for connection in find_connections(lambda local, remote: remote == own):
            cut(connection)
            cut(connection)  # as often as one likes
        for thread in threads:
            thread.join()
        assert received == [b"", b""]
        other.sendall(b"x")
        assert other_far.recv(1) == b"x"


def test_scanning_survives_descriptors_that_come_and_go(listener: socket.socket) -> None:
    """gloo and others close descriptors while they are listed. Guard: OSError is expected."""
    stopped = threading.Event()

    def churn() -> None:
        while not stopped.is_set():
            with Path(os.devnull).open(), socket.socket():
                pass

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with connection_to(listener):
            for _ in range(300):
                (found,) = at_port(listener)
                found.close()
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
