"""Sums between CPUs. gloo cannot be interrupted: its connections are found and cut from outside.

Even then not all its waits end. If a connection ends while gloo's loop takes a message off its list
of waiting ones, gloo can lose the message without an error, and its wait lasts until the timeout.
With traffic both ways on a loaded machine, one cut in twenty did that. So no thread waits in gloo
for long: it looks again and again whether the group was shut here, or a peer ended a connection.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroupGloo, Store
from torch._C._distributed_c10d import Work as BackendWork

from planaria_worker.addresses import Address, format_address, parse_address, plain
from planaria_worker.engine.groups.transport.backends import (
    PeerConnection,
    Pending,
    RawProcessGroup,
)
from planaria_worker.engine.groups.transport.sockets import (
    cut,
    find_connections,
    has_end,
    listening_addresses,
    open_sockets,
)

_MAX_DEVICE_ATTEMPTS = 10
_POLL_SECONDS = 0.02
"""How often a wait looks whether the group was shut, in case gloo does not report it."""
_LOST_SECONDS = 1.0
"""How long gloo has to read what came before a peer ended a connection, or to report the end."""
_ENDED = "a peer ended its connection"


class GlooConnector:
    """One rank's end of a group that is being built.

    Each group has a gloo device of its own, whose port tells the group's connections from others.

    Each pair of ranks has one connection, and one of its ends is the port of a device.
    """

    def __init__(self, host: str, operation_timeout_seconds: float) -> None:
        self._operation_timeout_seconds = operation_timeout_seconds
        device, self._own, self._older = _open_device(host)
        untyped: Any = ProcessGroupGloo  # its stub lacks the options that its constructor takes
        self._options = untyped._Options()
        self._options._devices = [device]
        self._members = {self._own}
        self.address = format_address(*self._own)

    def connect(
        self, store: Store, rank: int, addresses: Sequence[str], *, timeout_seconds: float
    ) -> "GlooBackend":
        self._members = {parse_address(address) for address in addresses}
        self._options._timeout = timedelta(seconds=timeout_seconds)
        process_group: Any = ProcessGroupGloo(store, rank, len(addresses), self._options)
        connections = self._connections()
        if len(connections) != len(addresses) - 1:
            # Refuse a group whose waits could not be ended.
            for connection in connections:
                cut(connection)
            raise RuntimeError(
                f"found {len(connections)} connections of a group of {len(addresses)} ranks"
            )
        backend = GlooBackend(process_group, connections, self._operation_timeout_seconds)
        backend.peer_connections = _with_peers(connections, rank, addresses)
        return backend

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            for connection in self._connections():
                cut(connection)

    def _connections(self) -> list[socket.socket]:
        others = self._members - {self._own}
        return find_connections(
            lambda local, remote: local == self._own or remote in others, self._older
        )


class GlooBackend:
    """A gloo process group and duplicates of its sockets."""

    def __init__(
        self,
        process_group: RawProcessGroup,
        connections: list[socket.socket],
        timeout_seconds: float,
    ) -> None:
        self._process_group = process_group
        self._connections = connections
        self.peer_connections: Sequence[PeerConnection] = ()
        self._options = AllreduceOptions()
        self._options.timeout = timedelta(seconds=timeout_seconds)

    def all_reduce(self, tensor: Tensor) -> Pending:
        work = self._process_group.allreduce([tensor], self._options)
        return _AllReduce(work, self._connections)

    def cut(self) -> None:
        while self._connections:
            with contextlib.suppress(IndexError):  # another thread cuts as well
                cut(self._connections.pop())


class _AllReduce:
    """A collective runs in a thread of gloo's: a wait for it can end early."""

    def __init__(self, work: BackendWork, connections: Collection[socket.socket]) -> None:
        self._work = work
        self._connections = connections

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        return _poll(self._is_done, timeout_seconds, shut, self._connections)

    def is_over(self) -> bool:
        return self._work.is_completed()

    def _is_done(self, seconds: float) -> bool:
        timeout = timedelta(seconds=seconds)
        with contextlib.suppress(RuntimeError):  # it failed, or the time is over
            return self._work.wait(timeout)
        return self._work.is_completed() and self._work.wait(timeout)


def _with_peers(
    connections: Iterable[socket.socket], rank: int, addresses: Sequence[str]
) -> Sequence[PeerConnection]:
    """Tell whose each connection is, where its address does.

    The remote end is the port of another rank's device, or any port on its host: then only a host
    with one rank tells which.
    """
    members = [parse_address(address) for address in addresses]
    found = []
    for connection in connections:
        with contextlib.suppress(OSError):
            remote = plain(connection.getpeername())
            is_outgoing = remote in members
            ranks = [r for r, each in enumerate(members) if r != rank and each == remote] or [
                r for r, (host, _) in enumerate(members) if r != rank and host == remote[0]
            ]
            if len(ranks) == 1:
                found.append(
                    PeerConnection(rank=ranks[0], socket=connection, is_outgoing=is_outgoing)
                )
    return tuple(found)


def _poll(
    is_done: Callable[[float], bool],
    timeout_seconds: float,
    shut: threading.Event,
    connections: Collection[socket.socket],
) -> bool:
    """Wait, and look whether the group was shut; once it was, look at the operation once more."""
    deadline, failure = time.monotonic() + timeout_seconds, f"timed out after {timeout_seconds:g} s"
    was_shut = False
    while not is_done(_POLL_SECONDS):
        if was_shut:
            return False
        if time.monotonic() > deadline:
            raise RuntimeError(failure)
        was_shut = shut.is_set()
        if failure != _ENDED and has_end(list(connections)):
            deadline, failure = min(deadline, time.monotonic() + _LOST_SECONDS), _ENDED
    return True


def _open_device(host: str) -> tuple[object, Address, Collection[str]]:
    """Open a gloo device; return it, where it listens, and the sockets that are older than it.

    gloo has no call for its address: it is that of the one new listening socket. The device accepts
    connections from this moment on.
    """
    for _ in range(_MAX_DEVICE_ATTEMPTS):
        before = open_sockets()
        device = ProcessGroupGloo.create_device(hostname=host, lazy_init=False)
        appeared = listening_addresses(before)
        if len(appeared) == 1:
            return device, appeared.pop(), before
    raise RuntimeError(f"other threads opened ports while a group was built on {host}")
