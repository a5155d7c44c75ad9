"""Whether another machine answers: its kernel does, even for engines that are stopped."""

import errno
import selectors
import socket
import time
from collections.abc import Sequence

from planaria.api.worker.v1.worker_service_pb2 import Reach
from planaria_common.errors import PlanariaError
from planaria_worker.addresses import Address, parse_address

TRY_SECONDS = 0.1
"""A packet may be lost: another connection is tried after so long, sooner than the kernel would."""


def find_reach(addresses: Sequence[str], timeout_seconds: float) -> Reach.ValueType:
    """Connect to a machine's engines until one connection succeeds or the time is over.

    Blocks for `timeout_seconds` at most, apart from looking up names.

    Returns:
        REACH_UNSPECIFIED where this machine is at fault. A machine that refuses some connections
        and does not answer others is there: REACH_REACHABLE.
    """
    try:
        targets = [_resolve(address) for address in addresses]
        return _Attempt(targets).run(timeout_seconds) if targets else Reach.REACH_UNSPECIFIED
    except (OSError, PlanariaError):
        return Reach.REACH_UNSPECIFIED


def _resolve(address: str) -> tuple[socket.AddressFamily, Address]:
    host, port = parse_address(address)
    family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(found[0]), port)


class _Attempt:
    """Connections to several addresses, each tried again and again."""

    def __init__(self, targets: Sequence[tuple[socket.AddressFamily, Address]]) -> None:
        self._targets = targets
        self._refused: set[Address] = set()
        self._is_connected = False
        self._open: dict[socket.socket, Address] = {}

    def run(self, timeout_seconds: float) -> Reach.ValueType:
        with selectors.DefaultSelector() as selector:
            try:
                return self._run(selector, time.monotonic() + timeout_seconds)
            finally:
                for connection in self._open:
                    connection.close()

    def _run(self, selector: selectors.BaseSelector, end: float) -> Reach.ValueType:
        next_try = 0.0
        while (now := time.monotonic()) < end:
            if now >= next_try:
                next_try = now + TRY_SECONDS
                self._try_again(selector)
            for key, _ in selector.select(max(0.0, min(end, next_try) - time.monotonic())):
                selector.unregister(key.fileobj)
                self._note(key.data, key.data.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            if self._is_connected:
                return Reach.REACH_REACHABLE
            if len(self._refused) == len(set(self._targets)):
                return Reach.REACH_REFUSED
        return Reach.REACH_REACHABLE if self._refused else Reach.REACH_UNREACHABLE

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

    def _note(self, connection: socket.socket, error: int) -> None:
        address = self._open.pop(connection)
        connection.close()
        if error == 0:
            self._is_connected = True
        elif error == errno.ECONNREFUSED:
            self._refused.add(address)
