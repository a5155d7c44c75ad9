"""Connects every rank of a group to its neighbours, by one TCP connection each.

Each rank listens for the rank before it and connects to the rank after it.
"""

import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from torch._C._distributed_c10d import Store

from planaria_worker.addresses import format_address, parse_address
from planaria_worker.engine.groups.transport.acceptor import Acceptor
from planaria_worker.engine.groups.transport.sockets import end
from planaria_worker.engine.groups.transport.tcp_link import Neighbour

_TOKEN_BYTES = 16

B = TypeVar("B")


class TcpConnector(Generic[B]):
    """One rank's end of a group that is being built."""

    def __init__(
        self,
        host: str,
        operation_timeout_seconds: float,
        backend: Callable[[Mapping[int, Neighbour]], B],
    ) -> None:
        """Listen.

        Args:
            host: address to listen on.
            operation_timeout_seconds: bound of every write.
            backend: makes the group's backend from its neighbours by rank.
        """
        self._opened: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._opened.append(self._listener)
        self._token = secrets.token_hex(_TOKEN_BYTES // 2)
        self._operation_timeout_seconds = operation_timeout_seconds
        self._backend = backend
        self._is_cut = False
        self.address = f"{format_address(host, self._listener.getsockname()[1])}/{self._token}"

    def connect(
        self,
        store: Store,  # noqa: ARG002 - the addresses are enough
        rank: int,
        addresses: Sequence[str],
        *,
        timeout_seconds: float,
    ) -> B:
        deadline = time.monotonic() + timeout_seconds
        connections = {}
        try:
            if rank + 1 < len(addresses):
                connections[rank + 1] = self._call(addresses[rank + 1], deadline)
            if rank > 0:
                acceptor = Acceptor(self._listener, self._token.encode())
                connections[rank - 1] = self._noted(acceptor.wait_for_neighbour(deadline))
        except OSError as error:
            raise RuntimeError(f"a neighbour did not come: {error}") from None
        self._opened = [self._listener]  # the others are the backend's
        return self._backend(
            {
                other: Neighbour(
                    connection, self._operation_timeout_seconds, is_outgoing=other > rank
                )
                for other, connection in connections.items()
            }
        )

    def __del__(self) -> None:
        for opened in self._opened:
            opened.close()

    def cut(self) -> None:
        self._is_cut = True
        for opened in list(self._opened):
            end(opened)

    def _call(self, address: str, deadline: float) -> socket.socket:
        where, _, token = address.partition("/")
        host, port = parse_address(where)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = self._noted(socket.socket(family, socket.SOCK_STREAM))
        connection.settimeout(max(deadline - time.monotonic(), 0.1))
        connection.connect((host, port))
        if connection.getsockname() == connection.getpeername():
            raise ConnectionError(f"nobody listens at {where}")  # the kernel joined both ends
        connection.sendall(token.encode())
        return connection

    def _noted(self, opened: socket.socket) -> socket.socket:
        self._opened.append(opened)
        if self._is_cut:  # meanwhile
            end(opened)
        return opened
