"""Which transport carries a group: NCCL between GPUs; between CPUs our own connections for pipeline
links and votes, and gloo for the sums of gradients.
"""

import torch

from planaria_worker.engine.groups.group_spec import GroupKind
from planaria_worker.engine.groups.transport.backends import (
    AllReduceBackend,
    Connector,
    LinkBackend,
)
from planaria_worker.engine.groups.transport.gloo import GlooConnector
from planaria_worker.engine.groups.transport.host_memory import (
    HostMemoryAllReduce,
    HostMemoryConnector,
    HostMemoryLink,
)
from planaria_worker.engine.groups.transport.tcp_all_reduce import TcpAllReduce
from planaria_worker.engine.groups.transport.tcp_connector import TcpConnector
from planaria_worker.engine.groups.transport.tcp_link import TcpLink
from planaria_worker.engine_config import Transport

AnyConnector = Connector[LinkBackend] | Connector[AllReduceBackend]


def open_connector(
    kind: GroupKind,
    *,
    transport: Transport,
    device: torch.device,
    host: str,
    operation_timeout_seconds: float,
) -> AnyConnector:
    """Open this rank's end of a new group."""
    is_on_host = kind is GroupKind.COMMIT_MESSAGES
    if transport == "nccl" and not is_on_host:
        # Builds of torch without CUDA cannot import it.
        from planaria_worker.engine.groups.transport.nccl import (
            NcclAllReduceConnector,
            NcclLinkConnector,
        )

        if kind.is_link:
            step = -1 if kind is GroupKind.GRADIENTS else 1
            return NcclLinkConnector(device, operation_timeout_seconds, step=step)
        return NcclAllReduceConnector(device, operation_timeout_seconds)
    via_host = transport == "gloo_via_host" and not is_on_host
    if kind.is_link:
        link: Connector[LinkBackend] = TcpConnector(host, operation_timeout_seconds, TcpLink)
        return HostMemoryConnector(link, HostMemoryLink) if via_host else link
    sums: Connector[AllReduceBackend]
    if kind is GroupKind.VOTE_SUM:
        sums = TcpConnector(host, operation_timeout_seconds, TcpAllReduce)
    else:
        sums = GlooConnector(host, operation_timeout_seconds)
    return HostMemoryConnector(sums, HostMemoryAllReduce) if via_host else sums
