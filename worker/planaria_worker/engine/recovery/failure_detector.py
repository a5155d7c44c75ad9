"""Detects that the process of a peer ended: the kernel closes its end of an idle connection.

There are two connections to the copy server of each peer, and one thread for all of them. The
peer's `LivenessBeacon` holds one, its other threads hold the other: the group of threads that
contains the last thread of a killed process frees the memory first, and the other connection ends
at once. A machine that disappears without closing connections is not detected here: heartbeats are
for that.
"""

import contextlib
import errno
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from planaria_common.clock import Clock, SystemClock
from planaria_common.logging import get_logger
from planaria_common.priority import come_first
from planaria_worker.addresses import parse_address
from planaria_worker.engine.layers.copy import wire

_RETRY_SECONDS = 0.5
_KINDS = wire.Kind.WATCH_BEACON, wire.Kind.WATCH

_log = get_logger("failure_detector")

OnLost = Callable[[str, datetime], None]
"""Called with the engine id of the peer and the time, from the detector's thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Peer:
    """A peer and one of the connections to it."""

    kind: wire.Kind
    engine_id: str
    address: str
    connection: socket.socket | None = None
    is_greeted: bool = False
    received: bytearray = field(default_factory=bytearray)
    retry_time: float = 0.0
    """When to connect again, by the monotonic clock."""
    is_over: bool = False
    """Its end, or its goodbye, was seen: there is nothing more to watch."""


class FailureDetector:
    """Watches the peers of the last call of `watch`; reports each lost peer once."""

    def __init__(self, *, job_secret: str, on_lost: OnLost, clock: Clock | None = None) -> None:
        """Start the thread; it watches no peer yet.

        Args:
            job_secret: of the peers.
            on_lost: called once for each peer whose process ended without saying goodbye.
            clock: gives the time at which a peer is lost.
        """
        self._greetings = {kind: wire.greeting(kind, job_secret) for kind in _KINDS}
        self._on_lost = on_lost
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._wanted: dict[str, str] | None = None
        self._is_closed = False
        self._peers: dict[tuple[str, wire.Kind], _Peer] = {}
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._wakened.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="failure-detector", daemon=True)
        self._thread.start()

    def watch(self, peers: Mapping[str, str]) -> None:
        """Watch these peers from now on, and no others.

        Keep the connections to peers that were watched before at the same address.

        Args:
            peers: data addresses by engine id.
        """
        with self._lock:
            self._wanted = dict(peers)
        self._wake()

    def close(self) -> None:
        """End the thread and the connections, and report nothing more."""
        self._is_closed = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"w")

    def _run(self) -> None:
        come_first()
        self._selector.register(self._wakened, selectors.EVENT_READ)
        while not self._is_closed:
            try:
                self._turn()
            except Exception:  # the other peers must still be watched
                _log.exception("failure_detector_failed")
        for peer in self._peers.values():
            self._disconnect(peer)
        self._selector.close()
        self._waker.close()
        self._wakened.close()

    def _turn(self) -> None:
        self._adopt_wanted()
        waiting = [peer for peer in self._peers.values() if not (peer.connection or peer.is_over)]
        for peer in waiting:
            if peer.retry_time <= self._clock.monotonic():
                self._guarded(peer, self._connect)
        is_retrying = any(peer.connection is None for peer in waiting)
        for key, _ in self._selector.select(_RETRY_SECONDS if is_retrying else None):
            if key.data is None:
                self._wakened.recv(4096)
            else:
                self._guarded(key.data, self._advance)

    def _adopt_wanted(self) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        for key, peer in list(self._peers.items()):
            if peer.is_over or wanted.get(peer.engine_id) != peer.address:
                self._disconnect(peer)
                del self._peers[key]
        for engine_id, address in wanted.items():
            for kind in _KINDS:
                peer = _Peer(kind=kind, engine_id=engine_id, address=address)
                self._peers.setdefault((engine_id, kind), peer)

    def _guarded(self, peer: _Peer, step: Callable[[_Peer], None]) -> None:
        try:
            step(peer)
        except Exception:
            _log.exception("peer_not_watched", peer=peer.engine_id)
            self._disconnect(peer)
            peer.is_over = True

    def _connect(self, peer: _Peer) -> None:
        host, port = parse_address(peer.address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        peer.connection = socket.socket(family, socket.SOCK_STREAM)
        peer.connection.setblocking(False)
        peer.is_greeted = False
        peer.received.clear()
        code = peer.connection.connect_ex((host, port))
        if code in (0, errno.EINPROGRESS):
            self._selector.register(peer.connection, selectors.EVENT_WRITE, peer)
        else:
            self._not_connected(peer, code)

    def _advance(self, peer: _Peer) -> None:
        """Handle an event on a connection."""
        if peer.connection is None:
            return
        try:
            if not peer.is_greeted:
                self._greet(peer, peer.connection)
                return
            data = peer.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(peer)
            return
        peer.received += data
        self._read(peer)

    def _greet(self, peer: _Peer, connection: socket.socket) -> None:
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._not_connected(peer, code)
            return
        connection.send(self._greetings[peer.kind])  # into an empty buffer: it fits
        peer.is_greeted = True
        self._selector.modify(connection, selectors.EVENT_READ, peer)

    def _read(self, peer: _Peer) -> None:
        """Check the name of the peer, and whether it says goodbye."""
        if len(peer.received) < wire.LENGTH.size:
            return
        (length,) = wire.LENGTH.unpack_from(peer.received)
        name = bytes(peer.received[wire.LENGTH.size : wire.LENGTH.size + length])
        if name != peer.engine_id.encode()[: len(name)] or length != len(peer.engine_id.encode()):
            self._lost(peer)  # its port belongs to another engine now
        elif peer.received[wire.LENGTH.size + length :].startswith(wire.BYE):
            _log.info("peer_ended_in_order", peer=peer.engine_id)
            self._end(peer)

    def _not_connected(self, peer: _Peer, code: int) -> None:
        self._disconnect(peer)
        peer.retry_time = self._clock.monotonic() + _RETRY_SECONDS
        if code in (errno.ECONNREFUSED, errno.ECONNRESET):
            self._lost(peer)  # its machine answers, but the port is closed
        else:
            _log.debug("peer_unreachable", peer=peer.engine_id, error=errno.errorcode.get(code))

    def _lost(self, peer: _Peer) -> None:
        self._end(peer)
        _log.warning("peer_lost", peer=peer.engine_id)
        self._on_lost(peer.engine_id, self._clock.now())

    def _end(self, peer: _Peer) -> None:
        """Close both connections: what one of them shows holds for the peer."""
        for kind in _KINDS:
            each = self._peers[peer.engine_id, kind]
            self._disconnect(each)
            each.is_over = True

    def _disconnect(self, peer: _Peer) -> None:
        if peer.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(peer.connection)
            peer.connection.close()
            peer.connection = None
