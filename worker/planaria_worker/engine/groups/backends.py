"""What a group needs of whatever moves its tensors: NCCL between GPUs; between CPUs connections of
our own along a pipeline and for the exchange, and gloo for the sums of gradients.

A connector is one end of a group that is being made, a backend that of one that stands. Both can be
cut from any thread, which makes every operation blocked in them fail at once.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, Store
from torch._C._distributed_c10d import Work as BackendWork

from planaria_worker.engine_config import Transport


class Pending(Protocol):
    """An operation under way."""

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        """Waits until it is complete; False when it is not, and the group was shut.

        Raises:
            RuntimeError: it failed, or the time is over.
        """
        ...

    def is_over(self) -> bool:
        """Whether it is known to have ended, well or not."""
        ...


class GroupBackend(Protocol):
    """One rank's end of a group. Operations only start: none of these calls waits for a peer."""

    def send(self, tensor: Tensor, dst: int) -> Pending: ...

    def recv(self, tensor: Tensor, src: int) -> Pending: ...

    def all_reduce(self, tensor: Tensor) -> Pending: ...

    def has_message(self, src: int) -> bool:
        """Whether it is known that one has begun to arrive, or that none will any more."""
        ...

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


class RawProcessGroup(Protocol):
    """What torch's backends can do, which its stubs do not say."""

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> BackendWork: ...

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> BackendWork: ...

    def allreduce(self, tensors: list[Tensor], options: AllreduceOptions) -> BackendWork: ...

    def abort(self) -> None: ...


def open_connector(
    transport: Transport,
    device: torch.device,
    host: str,
    *,
    is_line: bool,
    is_downward: bool,
    is_brief: bool = False,
    is_on_host: bool = False,
    operation_timeout_seconds: float,
) -> Connector:
    """Opens this rank's end of a new group, by how it is used."""
    if transport == "nccl" and not is_on_host:
        from planaria_worker.engine.groups.nccl import NcclConnector

        return NcclConnector(
            device, operation_timeout_seconds, is_line=is_line, is_downward=is_downward
        )
    connector: Connector
    if is_line or is_brief:
        from planaria_worker.engine.groups.pipeline_link import PipelineLinkConnector

        connector = PipelineLinkConnector(host, operation_timeout_seconds)
    else:
        from planaria_worker.engine.groups.gloo import GlooConnector

        connector = GlooConnector(host, operation_timeout_seconds)
    if transport == "gloo_via_host" and not is_on_host:
        from planaria_worker.engine.groups.host_memory import HostMemoryConnector

        return HostMemoryConnector(connector)
    return connector
