"""A peer whose process ends is reported once; whatever else happens to a connection is not."""

import contextlib
import queue
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from planaria_worker.engine.groups.link_failure import LinkFailure
from planaria_worker.engine.layers.copy import CopyServer, wire
from planaria_worker.engine.recovery.failure_detector import RECONNECT_SECONDS, FailureDetector
from support.clock import FakeClock
from unit.worker_comm.layers import HOST, SECRET, MemoryLayers, serve

NOW = datetime(2026, 1, 2, tzinfo=UTC)
BOUND_SECONDS = 30.0


class Losses:
    """What a watch reports, in order."""

    def __init__(self) -> None:
        self._reported: queue.SimpleQueue[tuple[str, datetime]] = queue.SimpleQueue()
        self.fails = False

    def __call__(self, failure: LinkFailure) -> None:
        self._reported.put((failure.peer_engine_id, failure.detect_time))
        if self.fails:
            raise RuntimeError("the callback fails")

    def next(self, expected: datetime = NOW) -> str:
        """Waits for the next loss, which was noticed at a certain time."""
        engine_id, when = self._reported.get(timeout=BOUND_SECONDS)
        assert when == expected
        return engine_id

    def is_empty(self) -> bool:
        return self._reported.empty()


class Peer:
    """A listening socket in a peer's place, played by the test.

    Attributes:
        kind: which of the two connections of a watch the test plays with.
    """

    def __init__(self, kind: wire.Kind) -> None:
        self.kind = kind
        self.listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.listener.getsockname()[1]}"
        self._accepted: list[socket.socket] = []

    def close(self) -> None:
        self.listener.close()
        for connection in self._accepted:
            connection.close()

    def accept(self, answer: bytes = b"") -> socket.socket:
        """Returns one of the two connections of a watch; the other stays open."""
        self.listener.settimeout(BOUND_SECONDS)
        connections = {}
        for _ in range(2):
            connection, _ = self.listener.accept()
            self._accepted.append(connection)
            greeting = wire.receive_exactly(connection, wire.GREETING.size)
            connections[greeting] = connection
            connection.sendall(answer)
        kinds = wire.Kind.WATCH, wire.Kind.WATCH_BEACON
        assert set(connections) == {wire.greeting(kind, SECRET) for kind in kinds}
        return connections[wire.greeting(self.kind, SECRET)]


def greeted(engine_id: str) -> bytes:
    return wire.LENGTH.pack(len(engine_id)) + engine_id.encode()


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def watch(losses: Losses, clock: FakeClock) -> Iterator[FailureDetector]:
    with contextlib.closing(
        FailureDetector(job_secret=SECRET, on_failure=losses, clock=clock)
    ) as running:
        yield running


@pytest.fixture(params=[wire.Kind.WATCH, wire.Kind.WATCH_BEACON])
def peers(request: pytest.FixtureRequest) -> Iterator[list[Peer]]:
    made = [Peer(request.param) for _ in range(3)]
    yield made
    for peer in made:
        peer.close()


@contextlib.contextmanager
def server(engine_id: str) -> Iterator[CopyServer]:
    with contextlib.closing(serve(MemoryLayers(0, {}), engine_id=engine_id)) as running:
        yield running


def test_the_end_of_a_connection_is_a_loss(
    watch: FailureDetector, losses: Losses, peers: list[Peer]
) -> None:
    """Also when the peer has not answered yet, and when it says more than its name."""
    watch.watch({str(index): peer.address for index, peer in enumerate(peers)})
    connections = [
        peers[0].accept(greeted("0")),
        peers[1].accept(),
        peers[2].accept(greeted("2") + b"by"),
    ]
    for index in (1, 0, 2):
        connections[index].close()
        assert losses.next() == str(index)


def test_a_reset_is_a_loss(watch: FailureDetector, losses: Losses, peers: list[Peer]) -> None:
    watch.watch({"0": peers[0].address})
    connection = peers[0].accept(greeted("0"))
    linger_zero = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
    connection.close()
    assert losses.next() == "0"


def test_a_port_without_a_listener_is_a_loss(
    watch: FailureDetector, losses: Losses, peers: list[Peer]
) -> None:
    """The process ended before it was watched."""
    peers[0].listener.close()
    watch.watch({"0": peers[0].address})
    assert losses.next() == "0"


def test_a_port_that_changed_hands_is_a_loss(watch: FailureDetector, losses: Losses) -> None:
    """Guard: the name in the greeting."""
    with server("job/node/0/2") as other:
        watch.watch({"job/node/0/1": other.address})
        assert losses.next() == "job/node/0/1"


def test_a_name_in_pieces_is_awaited(
    watch: FailureDetector, losses: Losses, peers: list[Peer]
) -> None:
    watch.watch({"peer": peers[0].address})
    connection = peers[0].accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in greeted("peer") + wire.BYE:
        connection.sendall(bytes([byte]))
    assert has_ended(connection)  # the watch has understood the goodbye
    assert losses.is_empty()


def test_goodbye_is_no_loss(watch: FailureDetector, losses: Losses, peers: list[Peer]) -> None:
    """A server that ends in order is not reported. Guard: `bye`."""
    with server("leaving") as leaving:
        watch.watch({"leaving": leaving.address, "lost": peers[0].address})
        peers[0].accept(greeted("lost")).close()
        assert losses.next() == "lost"
        wait_until_watched(leaving)
    watch.watch({"late": peers[1].address})  # in the same thread, behind the goodbye
    peers[1].accept().close()
    assert losses.next() == "late"
    assert losses.is_empty()


def test_goodbye_on_one_connection_is_goodbye(
    watch: FailureDetector, losses: Losses, peers: list[Peer]
) -> None:
    """The peer closes in order before it has greeted on the other."""
    watch.watch({"peer": peers[0].address, "lost": peers[1].address})
    connection = peers[0].accept(greeted("peer"))
    connection.sendall(wire.BYE)
    assert has_ended(connection)
    peers[0].close()
    peers[1].accept(greeted("lost")).close()
    assert losses.next() == "lost"
    assert losses.is_empty()


def wait_until_watched(watched: CopyServer) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not (watched._beacon.num_taken and watched._watchers):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # it left without reading the answer
        return True


def test_a_byte_is_sent_now_and_then(losses: Losses, peers: list[Peer]) -> None:
    """On the connection that no Python code reads, and none while one is unacknowledged."""
    with contextlib.closing(FailureDetector(job_secret=SECRET, on_failure=losses)) as watch:
        watch.watch({"0": peers[0].address})
        connection = peers[0].accept(greeted("0"))
        if peers[0].kind is wire.Kind.WATCH_BEACON:
            assert wire.receive_exactly(connection, 3) == 3 * wire.STILL_THERE
        else:
            connection.settimeout(1.0)
            with pytest.raises(TimeoutError):
                connection.recv(1)
    assert losses.is_empty()


def test_peers_are_connected_to_again_while_groups_are_not_built(
    watch: FailureDetector, losses: Losses, peers: list[Peer], clock: FakeClock
) -> None:
    """Once, by the beacon's connection: the other one still shows that the process ends."""
    watch.watch({"0": peers[0].address})
    first = peers[0].accept(greeted("0"))
    watch.reconnect_unless(lambda: False)
    clock.advance(RECONNECT_SECONDS)
    second, _ = peers[0].listener.accept()
    greeting = wire.receive_exactly(second, wire.GREETING.size)
    assert greeting == wire.greeting(wire.Kind.WATCH_BEACON, SECRET)
    if peers[0].kind is wire.Kind.WATCH:
        first.close()
        assert losses.next(clock.now()) == "0"
    else:
        assert has_ended(first)
        assert losses.is_empty()
    second.close()


def test_nobody_is_connected_to_again_once_groups_are_built(
    watch: FailureDetector, losses: Losses, peers: list[Peer], clock: FakeClock
) -> None:
    watch.watch({"0": peers[0].address})
    peers[0].accept(greeted("0"))
    watch.reconnect_unless(lambda: True)
    clock.advance(RECONNECT_SECONDS)
    watch.watch({"0": peers[0].address, "1": peers[1].address})  # in the same thread, later
    peers[1].accept(greeted("1"))
    peers[0].listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        peers[0].listener.accept()
    assert losses.is_empty()


def test_each_loss_is_reported_once_for_each_watch(
    watch: FailureDetector, losses: Losses, peers: list[Peer]
) -> None:
    for _ in range(2):
        watch.watch({"0": peers[0].address, "1": peers[1].address})
        peers[0].accept(greeted("0")).close()
        assert losses.next() == "0"
    peers[1].accept(greeted("1")).close()
    assert losses.next() == "1"
    assert losses.is_empty()


def test_a_peer_no_longer_watched_is_not_reported(
    watch: FailureDetector, losses: Losses, peers: list[Peer]
) -> None:
    """Generations change: the connection to a former peer is closed by us, others are kept."""
    watch.watch({"0": peers[0].address, "1": peers[1].address})
    former, kept = peers[0].accept(greeted("0")), peers[1].accept(greeted("1"))
    watch.watch({"1": peers[1].address, "2": peers[2].address})
    new = peers[2].accept(greeted("2"))

    assert has_ended(former)
    former.close()
    kept.close()
    assert losses.next() == "1"
    new.close()
    assert losses.next() == "2"
    assert losses.is_empty()


def test_a_failing_callback_or_address_affects_no_other_peer(
    watch: FailureDetector, losses: Losses, peers: list[Peer]
) -> None:
    """Guard: `_guarded`."""
    losses.fails = True
    watch.watch({"0": peers[0].address, "bad": "no address", "1": peers[1].address})
    connections = [peers[0].accept(greeted("0")), peers[1].accept(greeted("1"))]
    for index, connection in enumerate(connections):
        connection.close()
        assert losses.next() == str(index)


def test_closing_reports_nothing(losses: Losses, peers: list[Peer]) -> None:
    watch = FailureDetector(job_secret=SECRET, on_failure=losses, clock=FakeClock(NOW))
    watch.watch({"0": peers[0].address})
    connection = peers[0].accept(greeted("0"))
    watch.close()
    assert has_ended(connection)
    connection.close()
    assert losses.is_empty()
