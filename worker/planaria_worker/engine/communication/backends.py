"""How a group moves tensors: gloo between CPUs, NCCL between CUDA devices.

A connector is one end of a group that is being made, a backend that of one that stands. Both can be
cut from any thread, which makes every operation blocked in them fail at once.
"""

import contextlib
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroupGloo, Store
from torch._C._distributed_c10d import Work as BackendWork

from planaria_worker.engine.communication.addresses import Address, format_address, parse_address
from planaria_worker.engine.communication.sockets import cut, find_connections, listening_addresses

_MAX_DEVICE_ATTEMPTS = 10
TAG = 0
"""Between two ranks, messages of one direction arrive in the order in which they were sent."""


class RawProcessGroup(Protocol):
    """What torch's backends can do, which its stubs do not say."""

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> BackendWork: ...

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> BackendWork: ...

    def allreduce(self, tensors: list[Tensor], options: AllreduceOptions) -> BackendWork: ...

    def abort(self) -> None: ...


class GroupBackend(Protocol):
    """One rank's end of a group; every call may come from any thread."""

    def send(self, tensor: Tensor, dst: int) -> BackendWork: ...

    def recv(self, tensor: Tensor, src: int) -> BackendWork: ...

    def all_reduce(self, tensor: Tensor) -> BackendWork: ...

    def cut(self) -> None:
        """Makes every operation of this group fail, here and at the peers. Never raises."""
        ...


class Connector(Protocol):
    """One rank's end of a group that is being made."""

    address: str
    """For the other members to know."""

    def connect(
        self, store: Store, rank: int, addresses: Sequence[str], *, timeout_seconds: float
    ) -> GroupBackend:
        """Meets the other members; `addresses` are theirs, in rank order.

        Raises:
            RuntimeError: they did not come in time.
        """
        ...

    def cut(self) -> None:
        """Makes `connect` fail soon. Never raises."""
        ...


def open_connector(
    device: torch.device, host: str, *, operation_timeout_seconds: float
) -> Connector:
    """Opens this rank's end of a new group, by the kind of its accelerator."""
    if device.type == "cuda":
        from planaria_worker.engine.communication.nccl import NcclConnector

        return NcclConnector(device, operation_timeout_seconds)
    return GlooConnector(host, operation_timeout_seconds)


class GlooConnector:
    """A gloo device of its own for each group: its port tells the group's connections from others.

    Each pair of ranks has one connection, and one of its ends is the port of a device.
    """

    def __init__(self, host: str, operation_timeout_seconds: float) -> None:
        self._operation_timeout_seconds = operation_timeout_seconds
        device, self._own = _open_device(host)
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
            # Never go on with a group that could not be woken.
            for connection in connections:
                cut(connection)
            raise RuntimeError(
                f"found {len(connections)} connections of a group of {len(addresses)} ranks"
            )
        return GlooBackend(process_group, connections, self._operation_timeout_seconds)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            for connection in self._connections():
                cut(connection)

    def _connections(self) -> list[socket.socket]:
        others = self._members - {self._own}
        return find_connections(lambda local, remote: local == self._own or remote in others)


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
        self._options = AllreduceOptions()
        self._options.timeout = timedelta(seconds=timeout_seconds)

    def send(self, tensor: Tensor, dst: int) -> BackendWork:
        return self._process_group.send([tensor], dst, TAG)

    def recv(self, tensor: Tensor, src: int) -> BackendWork:
        return self._process_group.recv([tensor], src, TAG)

    def all_reduce(self, tensor: Tensor) -> BackendWork:
        return self._process_group.allreduce([tensor], self._options)

    def cut(self) -> None:
        while self._connections:
            with contextlib.suppress(IndexError):  # another thread cuts as well
                cut(self._connections.pop())


def _open_device(host: str) -> tuple[object, Address]:
    """A gloo device and where it listens, which it does not tell: the one new listening socket."""
    for _ in range(_MAX_DEVICE_ATTEMPTS):
        before = listening_addresses()
        device = ProcessGroupGloo.create_device(hostname=host, lazy_init=False)
        appeared = listening_addresses() - before
        if len(appeared) == 1:
            return device, appeared.pop()
    raise RuntimeError(f"other threads opened ports all the while a group was made on {host}")
