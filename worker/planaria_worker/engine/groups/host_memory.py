"""Groups of any device by way of host memory, over a backend that knows no other.

Several engines can share a GPU like this, which NCCL refuses. A tensor is copied to a buffer before
it is sent; what has come is copied to its tensor by whoever waits for it, on that thread's current
stream, whole and in one go. So a tensor whose wait failed is never written again.

Each message has a buffer of its own, which its operation in the backend keeps alive, also one that
was lost. Behind that it goes back to torch, which keeps pinned memory to use again.
"""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from planaria_worker.engine.groups.backends import Connector, GroupBackend, Pending


class HostMemoryConnector:
    """One rank's end of a group that is being made, over another connector."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.address = connector.address

    def connect(
        self, store: Store, rank: int, addresses: Sequence[str], *, timeout_seconds: float
    ) -> "HostMemoryBackend":
        return HostMemoryBackend(
            self._connector.connect(store, rank, addresses, timeout_seconds=timeout_seconds)
        )

    def cut(self) -> None:
        self._connector.cut()


class HostMemoryBackend:
    """Copies between tensors and the messages of another backend."""

    def __init__(self, backend: GroupBackend) -> None:
        self._backend = backend

    def send(self, tensor: Tensor, dst: int) -> Pending:
        return self._backend.send(_copied(tensor), dst)

    def recv(self, tensor: Tensor, src: int) -> Pending:
        buffer = _buffer_for(tensor)
        return _Arriving(self._backend.recv(buffer, src), buffer, tensor)

    def all_reduce(self, tensor: Tensor) -> Pending:
        buffer = _copied(tensor)
        return _Arriving(self._backend.all_reduce(buffer), buffer, tensor)

    def has_message(self, src: int) -> bool:
        return self._backend.has_message(src)

    def cut(self) -> None:
        self._backend.cut()


class _Arriving:
    """An operation whose result is copied from its buffer once it is complete."""

    def __init__(self, pending: Pending, buffer: Tensor, tensor: Tensor) -> None:
        self._pending = pending
        self._buffer = buffer
        self._tensor = tensor

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        if not self._pending.wait(timeout_seconds, shut):
            return False
        # From pinned memory nobody waits for it: torch does not use the buffer again before.
        self._tensor.copy_(self._buffer, non_blocking=True)
        return True

    def is_over(self) -> bool:
        return self._pending.is_over()


def _buffer_for(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")


def _copied(tensor: Tensor) -> Tensor:
    """The values of a tensor; waits for the device to have them."""
    return _buffer_for(tensor).copy_(tensor.detach())
