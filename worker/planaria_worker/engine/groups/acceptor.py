"""Who calls at a listener: the neighbour, known by a token, or strangers.

A stranger may say nothing, or one byte now and then: all callers are heard side by side, so that
none of them holds up the neighbour.
"""

import hmac
import selectors
import socket
import time

_MAX_UNKNOWN = 32
"""Callers who have not said all of the token yet; one more, and the first of them is let go."""


class Acceptor:
    """Those who have called and are not known yet."""

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self._listener = listener
        self._token = token
        self._heard: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()

    def wait_for_neighbour(self, deadline: float) -> socket.socket:
        """Returns the connection of whoever knows the token; the others are turned away. Once.

        Args:
            deadline: by `time.monotonic()`.

        Raises:
            TimeoutError: nobody came who knows it.
            OSError: the listener was shut.
        """
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while (seconds_left := deadline - time.monotonic()) > 0:
                for key, _ in self._selector.select(seconds_left):
                    caller = key.data or self._answer()
                    if caller in self._heard and self._knows_token(caller):
                        del self._heard[caller]
                        return caller
        finally:
            self._selector.close()
            for caller in self._heard:
                caller.close()
        raise TimeoutError("timed out")

    def _answer(self) -> socket.socket | None:
        try:
            caller, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # who called has left
            return None
        caller.setblocking(False)
        if len(self._heard) == _MAX_UNKNOWN:
            self._let_go(next(iter(self._heard)))
        self._heard[caller] = b""
        self._selector.register(caller, selectors.EVENT_READ, caller)
        return caller

    def _knows_token(self, caller: socket.socket) -> bool:
        """Hears what has come, and no byte behind the token; lets go of whoever is wrong."""
        try:
            piece = caller.recv(len(self._token) - len(self._heard[caller]))
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        said = self._heard[caller] = self._heard[caller] + piece
        if hmac.compare_digest(said, self._token):
            return True
        if not piece or len(said) == len(self._token):
            self._let_go(caller)
        return False

    def _let_go(self, caller: socket.socket) -> None:
        del self._heard[caller]
        self._selector.unregister(caller)
        caller.close()
