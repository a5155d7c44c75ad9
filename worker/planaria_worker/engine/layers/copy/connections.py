"""Connections to the copy servers of peers; any thread can end them at any time."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from planaria_worker.addresses import parse_address
from planaria_worker.engine.layers.copy import wire

CONNECT_TIMEOUT_SECONDS = 1.0
STALL_TIMEOUT_SECONDS = 2.0
"""Well below the coordinator's deadline for directives: an engine tries another source before the
coordinator considers the engine itself to hang."""


class Connections:
    """The connections of one directive; unusable once interrupted."""

    def __init__(
        self,
        kind: wire.Kind,
        job_secret: str,
        *,
        connect_timeout_seconds: float,
        stall_timeout_seconds: float,
    ) -> None:
        """Open nothing yet.

        Args:
            kind: purpose of the connections.
            job_secret: of the peers.
            connect_timeout_seconds: how long a peer may take to accept a connection.
            stall_timeout_seconds: how long a peer may go without sending a byte.
        """
        self._greeting = wire.greeting(kind, job_secret)
        self._connect_timeout_seconds = connect_timeout_seconds
        self._stall_timeout_seconds = stall_timeout_seconds
        self._lock = threading.Lock()
        self._is_interrupted = False
        self._open: set[socket.socket] = set()

    @property
    def is_interrupted(self) -> bool:
        return self._is_interrupted

    @contextlib.contextmanager
    def open(self, address: str) -> Iterator[socket.socket]:
        """Connect and send the greeting.

        Raises:
            OSError: the address does not answer, or `interrupt` was called.
            ValueError: it is not an address, or the peer speaks another protocol.
        """
        with socket.create_connection(
            parse_address(address), self._connect_timeout_seconds
        ) as connection:
            with self._lock:
                if self._is_interrupted:
                    raise ConnectionError("interrupted")
                self._open.add(connection)
            try:
                connection.settimeout(self._stall_timeout_seconds)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.sendall(self._greeting)
                length = wire.receive_length(connection, wire.MAX_ENGINE_ID_BYTES)
                wire.receive_exactly(connection, length)
                yield connection
            finally:
                with self._lock:
                    self._open.discard(connection)

    def interrupt(self) -> None:
        """End every connection; from any thread, without waiting, any number of times."""
        with self._lock:
            self._is_interrupted = True
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
