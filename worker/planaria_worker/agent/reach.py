"""Whether another machine answers: its kernel does, even for engines that are stopped."""

import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from planaria.api.worker.v1.worker_service_pb2 import Reach
from planaria_common.errors import PlanariaError
from planaria_worker.addresses import Address, parse_address

TRY_SECONDS = 0.1
"""A packet may be lost: another connection is tried after so long, sooner than the kernel would."""


def find_reach(
    addresses: Sequence[str],
    timeout_seconds: float,
    now_seconds: Callable[[], float] = time.monotonic,
) -> Reach.ValueType:
    """Connect to a machine's engines until one connection succeeds or the time is over.

    Blocks for `timeout_seconds` at most, apart from looking up names.

    Returns:
        REACH_UNSPECIFIED where this machine is at fault: it lacks a route, an address or a
        descriptor, or this process was stopped meanwhile. A machine that refuses some connections
        and does not answer others is there: REACH_REACHABLE.
    """
    try:
        targets = [_resolve(address) for address in addresses]
        return _Attempt(targets, now_seconds).run(timeout_seconds)
    except (OSError, PlanariaError):
        return Reach.REACH_UNSPECIFIED


def _resolve(address: str) -> tuple[socket.AddressFamily, Address]:
    host, port = parse_address(address)
    family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(found[0]), port)


class _Attempt:
    """Connections to several addresses, each tried again and again."""

    def __init__(
        self,
        targets: Sequence[tuple[socket.AddressFamily, Address]],
        now_seconds: Callable[[], float],
    ) -> None:
        self._targets = targets
        self._now_seconds = now_seconds
        self._refused: set[Address] = set()
        self._is_connected = False
        self._is_own_fault = not targets
        self._open: dict[socket.socket, Address] = {}

    def run(self, timeout_seconds: float) -> Reach.ValueType:
        with selectors.DefaultSelector() as selector:
            try:
                return self._run(selector, timeout_seconds)
            finally:
                for connection in self._open:
                    connection.close()

    def _run(self, selector: selectors.BaseSelector, timeout_seconds: float) -> Reach.ValueType:
        now = self._now_seconds()
        end = now + timeout_seconds
        while now < end and not self._is_certain:
            self._try_again(selector)
            next_try = min(end, now + TRY_SECONDS)
            self._watch(selector, next_try)
            now = self._now_seconds()
            # Overslept: whatever stopped this process may have stopped the whole machine.
            self._is_own_fault |= now > next_try + TRY_SECONDS
        return self._answer()

    def _answer(self) -> Reach.ValueType:
        if self._is_certain and not self._is_connected:
            return Reach.REACH_REFUSED
        if self._is_connected or self._refused:
            return Reach.REACH_REACHABLE
        return Reach.REACH_UNSPECIFIED if self._is_own_fault else Reach.REACH_UNREACHABLE

    @property
    def _is_certain(self) -> bool:
        return self._is_connected or 0 < len(set(self._targets)) == len(self._refused)

    def _try_again(self, selector: selectors.BaseSelector) -> None:
        for family, address in self._targets:
            if address not in self._refused:
                connection = socket.socket(family, socket.SOCK_STREAM)
                self._open[connection] = address
                connection.setblocking(False)
                error = connection.connect_ex(address)
                if error == errno.EINPROGRESS:
                    selector.register(connection, selectors.EVENT_WRITE, connection)
                else:  # never to be watched: what was not begun looks like what has succeeded
                    self._note(connection, error)
                    self._is_own_fault |= error not in (0, errno.ECONNREFUSED)

    def _watch(self, selector: selectors.BaseSelector, end: float) -> None:
        """Note what is answered until then, at least what has been answered already."""
        is_over = False
        while not (is_over or self._is_certain):
            remaining_seconds = end - self._now_seconds()
            is_over = remaining_seconds <= 0
            for key, _ in selector.select(max(0.0, remaining_seconds)):
                selector.unregister(key.fileobj)
                self._note(key.data, key.data.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _note(self, connection: socket.socket, error: int) -> None:
        address = self._open.pop(connection)
        connection.close()
        if error == 0:
            self._is_connected = True
        elif error == errno.ECONNREFUSED:
            self._refused.add(address)
