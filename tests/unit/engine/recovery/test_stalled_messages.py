"""A message is stalled when the peer's machine acknowledges none of its bytes, and only then."""

import socket
import struct
from typing import Any, cast

import pytest

from planaria_worker.engine.groups.transport.backends import PeerConnection
from planaria_worker.engine.recovery.stalled_messages import LEAST_SECONDS, StalledMessages

LOOK_SECONDS = 0.5


class Wire:
    """In the place of a socket, with what the kernel says of it."""

    def __init__(self) -> None:
        self.num_unacknowledged = 0
        self.num_acknowledged = 0
        self.round_trip_seconds = 0.001
        self.is_closed = False

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        assert (level, name) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        if self.is_closed:
            raise OSError("closed")
        info = bytearray(size)
        struct.pack_into("@I", info, 24, self.num_unacknowledged)
        struct.pack_into("@I", info, 68, int(self.round_trip_seconds * 1e6))
        struct.pack_into("@Q", info, 120, self.num_acknowledged)
        return bytes(info)


class Looks:
    """Looks at one connection twice a second."""

    def __init__(self, wire: Wire) -> None:
        self.connection = PeerConnection(rank=1, socket=cast(Any, wire), is_outgoing=True)
        self.stalled = StalledMessages()
        self.now = 100.0

    def look(self, seconds: float = LOOK_SECONDS) -> bool:
        self.now += seconds
        return bool(self.stalled.look(self.now, [("b", self.connection)]))

    def until_stalled(self, limit_seconds: float = 60.0) -> float | None:
        start = self.now
        while self.now - start < limit_seconds:
            if self.look():
                return self.now - start
        return None


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def looks(wire: Wire) -> Looks:
    return Looks(wire)


def test_bytes_that_nobody_acknowledges(wire: Wire, looks: Looks) -> None:
    wire.num_unacknowledged = 3
    seconds = looks.until_stalled()
    assert seconds is not None
    assert LEAST_SECONDS <= seconds <= LEAST_SECONDS + 2 * LOOK_SECONDS


def test_a_peer_that_takes_its_time_is_not_accused(wire: Wire, looks: Looks) -> None:
    """It is silent, and all that was sent is acknowledged."""
    wire.num_acknowledged = 1000
    assert looks.until_stalled() is None


def test_a_slow_message_makes_progress(wire: Wire, looks: Looks) -> None:
    wire.num_unacknowledged = 3
    for _ in range(20):
        assert not looks.look(1.9)
        wire.num_acknowledged += 1


def test_a_long_way_takes_longer(wire: Wire, looks: Looks) -> None:
    wire.num_unacknowledged = 3
    wire.round_trip_seconds = 0.6
    seconds = looks.until_stalled()
    assert seconds is not None
    assert seconds >= 6.0


def test_time_in_which_nobody_looked_does_not_count(wire: Wire, looks: Looks) -> None:
    """The whole machine was paused. Guard: the number of looks."""
    wire.num_unacknowledged = 3
    assert not looks.look()
    assert not looks.look(30.0)
    wire.num_acknowledged += 1
    assert not looks.look()


def test_a_connection_that_is_closed_is_left(wire: Wire, looks: Looks) -> None:
    wire.num_unacknowledged = 3
    looks.look()
    wire.is_closed = True
    assert looks.until_stalled(5.0) is None


def test_the_kernel_says_it_so() -> None:
    """Of a real connection: what was sent and read is acknowledged."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
        with mine, other:
            mine.sendall(b"x" * 1000)
            assert other.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
            stalled = StalledMessages()
            connection = PeerConnection(rank=1, socket=mine, is_outgoing=True)
            assert stalled.look(0.0, [("b", connection)]) == []
            (seen,) = stalled._progress.values()
            assert seen.num_acknowledged >= 1000
