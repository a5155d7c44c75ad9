"""What a group needs from a transport.

A connector is one rank's end of a group that is being built, a backend that of a group that is
ready. Any thread can cut either: every operation blocked in it then fails at once.
"""

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, Store
from torch._C._distributed_c10d import Work as BackendWork

B_co = TypeVar("B_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConnection:
    """A TCP connection to another rank of a group."""

    rank: int
    socket: socket.socket
    is_outgoing: bool
    """Whether this rank opened it."""


@runtime_checkable
class OverTcp(Protocol):
    """A backend that can show its connections."""

    @property
    def peer_connections(self) -> Sequence[PeerConnection]:
        """Those whose other end is known."""
        ...


def connections_of(backend: object) -> Sequence[PeerConnection]:
    """Return the connections of a backend; none for one that does not show them."""
    return backend.peer_connections if isinstance(backend, OverTcp) else ()


class Pending(Protocol):
    """An operation under way."""

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        """Wait until it is complete; return False if the group was shut first.

        Raises:
            RuntimeError: it failed or timed out.
        """
        ...

    def is_over(self) -> bool:
        """Whether it is known to have ended, successfully or not."""
        ...


class Backend(Protocol):
    """One rank's end of a group. Operations only start: no call waits for a peer."""

    def cut(self) -> None:
        """Make every operation of this group fail, here and at the peers. Never raises."""
        ...


class LinkBackend(Backend, Protocol):
    """Moves the messages of a pipeline link."""

    def send(self, tensor: Tensor, dst: int) -> Pending: ...

    def recv(self, tensor: Tensor, src: int) -> Pending: ...

    def has_message(self, src: int) -> bool:
        """Whether one is known to have begun to arrive, or can never arrive."""
        ...


class AllReduceBackend(Backend, Protocol):
    """Sums the tensors of a data-parallel group."""

    def all_reduce(self, tensor: Tensor) -> Pending: ...


class Connector(Protocol[B_co]):
    """One rank's end of a group that is being built."""

    address: str
    """The other members need it to connect."""

    def connect(
        self, store: Store, rank: int, addresses: Sequence[str], *, timeout_seconds: float
    ) -> B_co:
        """Connect to the other members; `addresses` are theirs, in rank order.

        Raises:
            RuntimeError: they did not come in time.
        """
        ...

    def cut(self) -> None:
        """Make `connect` fail soon. Never raises."""
        ...


class RawProcessGroup(Protocol):
    """The methods of torch's process groups that its type stubs leave out."""

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> BackendWork: ...

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> BackendWork: ...

    def allreduce(self, tensors: list[Tensor], options: AllreduceOptions) -> BackendWork: ...

    def abort(self) -> None: ...
