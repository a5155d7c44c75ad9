"""Serves this engine's layers to its peers, and lets them detect that its process ended."""

import contextlib
import hmac
import socket
import threading
import time

from planaria_common.logging import get_logger
from planaria_common.supervised import start_supervised_thread
from planaria_worker.addresses import format_address
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.groups.liveness_beacon import LivenessBeacon
from planaria_worker.engine.layers.copy import wire
from planaria_worker.engine.layers.copy.chunks import send_tensors
from planaria_worker.engine.layers.copy.feed import CommitFeed
from planaria_worker.engine.layers.copy.stream import CommitStream, LayerSource

_GREETING_TIMEOUT_SECONDS = 5.0
_STALL_TIMEOUT_SECONDS = 30.0
_REST_SECONDS = 0.1
"""Pause after a failed accept: without it the next one would fail at once."""

_log = get_logger("copy_server")


class CopyServer:
    """Listens from its construction until it is closed; one thread for each connection.

    Attributes:
        address: `host:port` where peers connect.
    """

    def __init__(
        self,
        host: str,
        *,
        engine_id: str,
        job_secret: str,
        source: LayerSource,
        feed: CommitFeed,
        failpoints: Failpoints,
        stall_timeout_seconds: float = _STALL_TIMEOUT_SECONDS,
    ) -> None:
        """Listen on a free port.

        Args:
            host: the only address to listen on.
            engine_id: sent to peers that connect, since another engine may reuse the port.
            job_secret: a peer without it is not served.
            source: the layers.
            feed: their committed sums.
            failpoints: hit at `serve_copy` and `serve_follow` after each chunk, with the version
                that it belongs or leads to as the step.
            stall_timeout_seconds: a peer that reads no byte, or requests nothing, for so long is
                disconnected.
        """
        self._engine_id = engine_id
        self._secret_digest = wire.secret_digest(job_secret)
        self._source = source
        self._feed = feed
        self._failpoints = failpoints
        self._stall_timeout_seconds = stall_timeout_seconds
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._served: set[socket.socket] = set()
        """Those of peers that want layers."""
        self._watchers: set[socket.socket] = set()
        """Greeted, but not yet held by the beacon."""
        self._beacon = LivenessBeacon(farewell=wire.BYE)
        self._is_closed = False
        self._is_suspended = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.address = format_address(host, self._listener.getsockname()[1])
        start_supervised_thread("copy-server", self._accept)

    def suspend(self) -> None:
        """Serve no layer from now on, to nobody; peers that watch see no end."""
        self._is_suspended = True
        with self._lock:
            served = list(self._served)
        for connection in served:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def resume(self) -> None:
        """Serve layers again."""
        self._is_suspended = False

    def close(self) -> None:
        """Say goodbye to the peers that watch, and end every connection."""
        with self._lock:
            self._is_closed = True
            connections, watchers = list(self._connections), list(self._watchers)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for watcher in watchers:
            with contextlib.suppress(OSError):
                watcher.send(wire.BYE)
        self._beacon.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
                self._begin_to_serve(connection)
            except (OSError, RuntimeError) as error:
                if not self._is_closed:  # too many open files or threads
                    _log.warning("accept_failed", error=str(error))
                    time.sleep(_REST_SECONDS)

    def _begin_to_serve(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="copy-connection", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            connection.close()
            raise

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            with self._lock:
                if self._is_closed:
                    return
                self._connections.add(connection)
            try:
                self._converse(connection)
            except OSError as error:
                _log.debug("peer_gone", error=str(error))
            except Exception:
                _log.exception("copy_connection_failed")
            finally:
                with self._lock:
                    self._connections.discard(connection)
                    self._watchers.discard(connection)
                    self._served.discard(connection)

    def _converse(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(_GREETING_TIMEOUT_SECONDS)
        kind = self._greet(connection)
        if kind is wire.Kind.WATCH:
            self._be_watched(connection)
        elif kind is wire.Kind.WATCH_BEACON:
            if not self._beacon.hold(connection):
                self._be_watched(connection)
        elif kind is wire.Kind.COPY:
            connection.settimeout(self._stall_timeout_seconds)
            while True:
                request = wire.receive_exactly(connection, wire.REQUEST.size)
                self._answer(connection, *wire.REQUEST.unpack(request))
        elif kind is wire.Kind.FOLLOW:
            connection.settimeout(self._stall_timeout_seconds)
            layers = wire.receive_follow_request(connection)
            stream = CommitStream(
                connection, source=self._source, feed=self._feed, failpoints=self._failpoints
            )
            stream.serve(layers)

    def _greet(self, connection: socket.socket) -> wire.Kind | None:
        greeting = wire.receive_exactly(connection, wire.GREETING.size)
        magic, kind, digest = wire.GREETING.unpack(greeting)
        knows_secret = hmac.compare_digest(digest, self._secret_digest)
        if magic != wire.MAGIC or not knows_secret or kind not in set(wire.Kind):
            _log.warning("peer_refused", peer=str(connection.getpeername()))
            return None
        name = self._engine_id.encode()
        with self._lock:  # a goodbye comes after the name
            connection.sendall(wire.LENGTH.pack(len(name)) + name)
            if kind in (wire.Kind.WATCH, wire.Kind.WATCH_BEACON):
                self._watchers.add(connection)
            elif self._is_suspended:
                return None
            else:
                self._served.add(connection)
        return wire.Kind(kind)

    def _be_watched(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        while connection.recv(1):
            pass

    def _answer(self, connection: socket.socket, layer: int, version: int) -> None:
        held = self._source.version(layer)
        tensors = None
        if held == version:
            with contextlib.suppress(KeyError):
                tensors = self._source.tensors(layer)
        if tensors is None:
            state = wire.AnswerState.NOT_HELD if held is None else wire.AnswerState.OTHER_VERSION
            connection.sendall(wire.Answer(state=state, version=held).encode())
            return
        answer = wire.Answer(
            state=wire.AnswerState.HELD, version=version, tensors=wire.describe(tensors)
        )
        connection.sendall(answer.encode())

        def is_unchanged() -> bool:
            self._failpoints.hit("serve_copy", step=version)
            return self._source.version(layer) == version

        send_tensors(connection, tensors.values(), goes_on=is_unchanged)
