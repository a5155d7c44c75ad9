"""Detects that the link to a peer failed, by connections that carry nothing else.

There are two connections to the copy server of each peer, and one thread for all of them. The
peer's `LivenessBeacon` holds one, its other threads hold the other: the group of threads that
contains the last thread of a killed process frees the memory first, and the other connection ends
at once.

A machine that disappears closes nothing. So the beacon's connection carries a byte now and then,
which the peer's kernel acknowledges even if the process is stopped. Without an acknowledgement the
peer is reported as unreachable, and connected to again; when that fails for a while, the link is
reported as stalled and given up.

A connection says nothing of the next one: a firewall may let old ones through and drop new ones. So
while groups are not built, new connections to all peers are opened.
"""

import contextlib
import errno
import fcntl
import math
import selectors
import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from planaria_common.clock import Clock, SystemClock
from planaria_common.logging import get_logger
from planaria_common.priority import come_first
from planaria_worker.addresses import parse_address
from planaria_worker.engine.groups.link_failure import (
    LinkFailure,
    LinkFailureKind,
    OnLinkFailure,
    kind_of,
)
from planaria_worker.engine.groups.transport.backends import PeerConnection
from planaria_worker.engine.layers.copy import wire
from planaria_worker.engine.recovery.stalled_messages import StalledMessages

_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.5
_PROBE_SECONDS = 0.1
"""How often a byte is sent, while none is unacknowledged."""
_UNACKNOWLEDGED_SECONDS = 0.25
"""A byte that is not acknowledged for so long makes a peer unreachable. The kernel sends it a
second time before that, after 0.2 s."""
_OPENING_MILLISECONDS = 300
"""TCP_USER_TIMEOUT: the kernel gives up a connection that is being opened after a second."""
GIVE_UP_SECONDS = 2.0
"""A link to a peer that stays unreachable for so long is given up."""
RECONNECT_SECONDS = 0.5
"""After so long without groups, new connections to peers are opened: time to give a link up before
others have waited long enough for the groups."""
_KINDS = wire.Kind.WATCH_BEACON, wire.Kind.WATCH

_log = get_logger("failure_detector")


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
    probe_time: float = 0.0
    """When the last byte was sent that was to be acknowledged."""
    is_over: bool = False
    """Its end, or its goodbye, was seen: there is nothing more to watch."""


class FailureDetector:
    """Watches the peers of the last call of `watch`; reports each link that failed once."""

    def __init__(
        self, *, job_secret: str, on_failure: OnLinkFailure, clock: Clock | None = None
    ) -> None:
        """Start the thread; it watches no peer yet.

        Args:
            job_secret: of the peers.
            on_failure: called once for each peer whose connection ended without a goodbye; when
                one becomes unreachable, and when it has been so for too long.
            clock: gives the time of a failure.
        """
        self._greetings = {kind: wire.greeting(kind, job_secret) for kind in _KINDS}
        self._on_failure = on_failure
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._wanted: dict[str, str] | None = None
        self._is_closed = False
        self._peers: dict[tuple[str, wire.Kind], _Peer] = {}
        self._unreachable_since: dict[str, float] = {}
        self._probe_time = 0.0
        self._look_time = 0.0
        self._reconnect_time = math.inf
        self._are_built: Callable[[], bool] = lambda: True
        self._stalled = StalledMessages()
        self._connections: Callable[[], Iterable[tuple[str, PeerConnection]]] = tuple
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

    def reconnect_unless(self, are_built: Callable[[], bool]) -> None:
        """Open new connections to all peers if groups are not built after half a second.

        Args:
            are_built: whether they are; a build that has failed may be begun again at any time.
        """
        with self._lock:
            self._are_built = are_built
            self._reconnect_time = min(
                self._reconnect_time, self._clock.monotonic() + RECONNECT_SECONDS
            )
        self._wake()

    def follow(self, connections: Callable[[], Iterable[tuple[str, PeerConnection]]]) -> None:
        """Report messages that make no progress, over whatever connections there are.

        Args:
            connections: called now and then.
        """
        self._connections = connections

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
        now = self._clock.monotonic()
        watched = [peer for peer in self._peers.values() if not peer.is_over]
        if self._is_time_to_reconnect(now):
            for peer in watched:
                if peer.is_greeted and peer.kind is wire.Kind.WATCH_BEACON:
                    self._disconnect(peer)
        for peer in watched:
            if peer.connection is None and peer.retry_time <= now:
                self._guarded(peer, self._connect)
        if self._probe_time <= now:
            self._probe_time = now + _PROBE_SECONDS
            for peer in watched:
                if peer.is_greeted and peer.kind is wire.Kind.WATCH_BEACON:
                    self._guarded(peer, self._probe)
        if watched and self._look_time <= now:
            self._look_time = now + _LOOK_SECONDS
            self._look_at_messages(now)
        for key, _ in self._selector.select(_PROBE_SECONDS if watched else None):
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
                self._unreachable_since.pop(peer.engine_id, None)
        for engine_id, address in wanted.items():
            for kind in _KINDS:
                peer = _Peer(kind=kind, engine_id=engine_id, address=address)
                self._peers.setdefault((engine_id, kind), peer)

    def _is_time_to_reconnect(self, now: float) -> bool:
        with self._lock:
            if now < self._reconnect_time:
                return False
            self._reconnect_time, are_built = math.inf, self._are_built
        return not are_built()

    def _guarded(self, peer: _Peer, step: Callable[[_Peer], None]) -> None:
        try:
            step(peer)
        except OSError as error:  # such as no descriptor: that says nothing of the peer
            self._disconnect(peer)
            peer.retry_time = self._clock.monotonic() + _RETRY_SECONDS
            _log.warning("peer_not_watched_yet", peer=peer.engine_id, cause=str(error))
        except Exception:
            _log.exception("peer_not_watched", peer=peer.engine_id)
            self._disconnect(peer)
            peer.is_over = True

    def _connect(self, peer: _Peer) -> None:
        host, port = parse_address(peer.address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        peer.connection = socket.socket(family, socket.SOCK_STREAM)
        peer.connection.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _OPENING_MILLISECONDS
        )
        peer.connection.setblocking(False)
        peer.is_greeted = False
        peer.received.clear()
        code = peer.connection.connect_ex((host, port))
        if code in (0, errno.EINPROGRESS):
            self._selector.register(peer.connection, selectors.EVENT_WRITE, peer)
        else:
            self._not_connected(peer, code)

    def _look_at_messages(self, now: float) -> None:
        accused = set()
        for engine_id, connection in self._stalled.look(now, self._connections()):
            if engine_id not in accused:
                accused.add(engine_id)
                self._report(engine_id, LinkFailureKind.STALLED, is_outgoing=connection.is_outgoing)

    def _probe(self, peer: _Peer) -> None:
        """Send a byte, unless one has not been acknowledged yet."""
        if peer.connection is None:
            return
        now = self._clock.monotonic()
        unacknowledged = fcntl.ioctl(peer.connection, termios.TIOCOUTQ, bytes(4))
        if struct.unpack("i", unacknowledged) != (0,):
            if now - peer.probe_time >= _UNACKNOWLEDGED_SECONDS:
                self._failed(peer, errno.ETIMEDOUT)
            return
        peer.probe_time = now
        try:
            peer.connection.send(wire.STILL_THERE)
        except OSError as error:
            self._failed(peer, error.errno)

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
        except OSError as error:
            self._failed(peer, error.errno)
            return
        if not data:
            self._failed(peer, None)
            return
        peer.received += data
        self._read(peer)

    def _greet(self, peer: _Peer, connection: socket.socket) -> None:
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._not_connected(peer, code)
            return
        connection.send(self._greetings[peer.kind])  # into an empty buffer: it fits
        peer.probe_time = self._clock.monotonic()
        peer.is_greeted = True
        self._selector.modify(connection, selectors.EVENT_READ, peer)

    def _read(self, peer: _Peer) -> None:
        """Check the name of the peer, and whether it says goodbye."""
        if len(peer.received) < wire.LENGTH.size:
            return
        (length,) = wire.LENGTH.unpack_from(peer.received)
        name = bytes(peer.received[wire.LENGTH.size : wire.LENGTH.size + length])
        if name != peer.engine_id.encode()[: len(name)] or length != len(peer.engine_id.encode()):
            self._failed(peer, None)  # its port belongs to another engine now
        elif peer.received[wire.LENGTH.size + length :].startswith(wire.BYE):
            _log.info("peer_ended_in_order", peer=peer.engine_id)
            self._end(peer)
        elif self._unreachable_since.pop(peer.engine_id, None) is not None:
            _log.info("peer_reachable_again", peer=peer.engine_id)

    def _not_connected(self, peer: _Peer, code: int) -> None:
        self._disconnect(peer)
        self._failed(peer, code)

    def _failed(self, peer: _Peer, code: int | None) -> None:
        """Give the link up, or connect again when the peer was only unreachable."""
        kind = kind_of(code)
        if kind is not LinkFailureKind.UNREACHABLE:
            self._end(peer)
            self._report(peer.engine_id, kind)
            return
        now = self._clock.monotonic()
        is_new = peer.engine_id not in self._unreachable_since
        since = self._unreachable_since.setdefault(peer.engine_id, now)
        # One that refuses at once is asked again after a while; others have taken their time.
        peer.retry_time = now + (_RETRY_SECONDS if peer.connection is None else 0.0)
        self._disconnect(peer)
        if is_new:
            self._report(peer.engine_id, kind)
        elif now - since >= GIVE_UP_SECONDS:
            self._end(peer)
            self._report(peer.engine_id, LinkFailureKind.STALLED)

    def _report(self, engine_id: str, kind: LinkFailureKind, *, is_outgoing: bool = True) -> None:
        _log.warning("link_failed", peer=engine_id, kind=kind)
        self._on_failure(
            LinkFailure(
                peer_engine_id=engine_id,
                kind=kind,
                is_outgoing=is_outgoing,
                detect_time=self._clock.now(),
            )
        )

    def _end(self, peer: _Peer) -> None:
        """Close both connections: what one of them shows holds for the peer."""
        for kind in _KINDS:
            each = self._peers[peer.engine_id, kind]
            self._disconnect(each)
            each.is_over = True
        self._unreachable_since.pop(peer.engine_id, None)

    def _disconnect(self, peer: _Peer) -> None:
        if peer.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(peer.connection)
            peer.connection.close()
            peer.connection = None
        peer.is_greeted = False
