"""Accepts the connection of a neighbour, recognised by a token, and refuses all others.

A stranger may send nothing, or one byte now and then: all connections are read concurrently, so
that no stranger delays the neighbour.
"""

import hmac
import selectors
import socket
import time

_MAX_UNKNOWN = 32
"""Connections that have not sent the whole token yet; one more closes the oldest."""


class Acceptor:
    """The connections that have not sent the whole token yet."""

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self._listener = listener
        self._token = token
        self._received: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()

    def wait_for_neighbour(self, deadline: float) -> socket.socket:
        """Return the connection that sends the token, and close the others. Call it once.

        Args:
            deadline: by `time.monotonic()`.

        Raises:
            TimeoutError: no connection sent the token in time.
            OSError: the listener was shut.
        """
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while (seconds_left := deadline - time.monotonic()) > 0:
                for key, _ in self._selector.select(seconds_left):
                    caller = key.data or self._accept()
                    if caller in self._received and self._has_sent_token(caller):
                        del self._received[caller]
                        return caller
        finally:
            self._selector.close()
            for caller in self._received:
                caller.close()
        raise TimeoutError("timed out")

    def _accept(self) -> socket.socket | None:
        try:
            caller, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the caller has left
            return None
        caller.setblocking(False)
        if len(self._received) == _MAX_UNKNOWN:
            self._close(next(iter(self._received)))
        self._received[caller] = b""
        self._selector.register(caller, selectors.EVENT_READ, caller)
        return caller

    def _has_sent_token(self, caller: socket.socket) -> bool:
        """Read what has come, but no byte after the token; close a connection that is wrong."""
        try:
            piece = caller.recv(len(self._token) - len(self._received[caller]))
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        said = self._received[caller] = self._received[caller] + piece
        if hmac.compare_digest(said, self._token):
            return True
        if not piece or len(said) == len(self._token):
            self._close(caller)
        return False

    def _close(self, caller: socket.socket) -> None:
        del self._received[caller]
        self._selector.unregister(caller)
        caller.close()
