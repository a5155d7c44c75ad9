"""Groups of any device by way of host memory, over a transport for CPU tensors.

Several engines can share a GPU this way, which NCCL refuses. A tensor is copied to a buffer before
it is sent. A received buffer is copied to its tensor by the thread that waits for it, on that
thread's current stream, in one piece. So a tensor whose wait failed is never written again.

Each message has a buffer of its own. Its operation keeps the buffer alive, also after a failure.
The buffer then goes back to torch, which reuses pinned memory.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from planaria_worker.engine.groups.transport.backends import (
    AllReduceBackend,
    Connector,
    LinkBackend,
    PeerConnection,
    Pending,
    connections_of,
)

B = TypeVar("B")


class HostMemoryConnector(Generic[B]):
    """One rank's end of a group that is being built, over another connector."""

    def __init__(self, connector: Connector[B], wrap: Callable[[B], B]) -> None:
        self._connector = connector
        self._wrap = wrap
        self.address = connector.address

    def connect(
        self, store: Store, rank: int, addresses: Sequence[str], *, timeout_seconds: float
    ) -> B:
        return self._wrap(
            self._connector.connect(store, rank, addresses, timeout_seconds=timeout_seconds)
        )

    def cut(self) -> None:
        self._connector.cut()


class HostMemoryLink:
    """Copies between tensors and the messages of a pipeline link."""

    def __init__(self, link: LinkBackend) -> None:
        self._link = link

    def send(self, tensor: Tensor, dst: int) -> Pending:
        return self._link.send(_copied(tensor), dst)

    def recv(self, tensor: Tensor, src: int) -> Pending:
        buffer = _buffer_for(tensor)
        return _Arriving(self._link.recv(buffer, src), buffer, tensor)

    def has_message(self, src: int) -> bool:
        return self._link.has_message(src)

    @property
    def peer_connections(self) -> Sequence[PeerConnection]:
        return connections_of(self._link)

    def cut(self) -> None:
        self._link.cut()


class HostMemoryAllReduce:
    """Copies between tensors and the buffers that a data-parallel group sums."""

    def __init__(self, sums: AllReduceBackend) -> None:
        self._sums = sums

    def all_reduce(self, tensor: Tensor) -> Pending:
        buffer = _copied(tensor)
        return _Arriving(self._sums.all_reduce(buffer), buffer, tensor)

    @property
    def peer_connections(self) -> Sequence[PeerConnection]:
        return connections_of(self._sums)

    def cut(self) -> None:
        self._sums.cut()


class _Arriving:
    """An operation whose result is copied from its buffer once it is complete."""

    def __init__(self, pending: Pending, buffer: Tensor, tensor: Tensor) -> None:
        self._pending = pending
        self._buffer = buffer
        self._tensor = tensor

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        if not self._pending.wait(timeout_seconds, shut):
            return False
        # Nothing waits for a copy from pinned memory: torch reuses the buffer only after it.
        self._tensor.copy_(self._buffer, non_blocking=True)
        return True

    def is_over(self) -> bool:
        return self._pending.is_over()


def _buffer_for(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")


def _copied(tensor: Tensor) -> Tensor:
    """Copy the values of a tensor; wait for the device to have them."""
    return _buffer_for(tensor).copy_(tensor.detach())
