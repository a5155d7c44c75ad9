"""Groups of CUDA devices. NCCL's own abort wakes whoever waits; there are no sockets to cut.

Written after the documentation (non-blocking communicators, abort on all ranks). It has not run: no
test of ours has a GPU yet.
"""

import contextlib
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroupNCCL, Store

from planaria_worker.engine.communication.backends import DirectWait, Pending, RawProcessGroup

_TAG = 0
"""Between two ranks, messages of one direction arrive in the order in which they were sent."""


class NcclConnector:
    """One rank's end of a group of CUDA devices that is being made."""

    address = ""
    """NCCL exchanges its own through the store."""

    def __init__(self, device: torch.device, operation_timeout_seconds: float) -> None:
        # By default torch ends the process after an aborted collective: here the engine lives on.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        self._device = device
        self._timeout = timedelta(seconds=operation_timeout_seconds)
        self._process_group: RawProcessGroup | None = None

    def connect(
        self, store: Store, rank: int, addresses: Sequence[str], *, timeout_seconds: float
    ) -> "NcclBackend":
        store.set_timeout(timedelta(seconds=timeout_seconds))
        options = ProcessGroupNCCL.Options()
        options.config.blocking = 0  # otherwise a communicator cannot be aborted while it connects
        options._timeout = self._timeout
        process_group: Any = ProcessGroupNCCL(store, rank, len(addresses), options)
        self._process_group = process_group
        process_group.eager_connect_single_device(self._device)
        return NcclBackend(process_group)

    def cut(self) -> None:
        if self._process_group is not None:
            NcclBackend(self._process_group).cut()


class NcclBackend:
    """An NCCL process group. Waiting for a Work orders the current stream behind it, no more."""

    def __init__(self, process_group: RawProcessGroup) -> None:
        self._process_group = process_group

    def send(self, tensor: Tensor, dst: int) -> Pending:
        return DirectWait(self._process_group.send([tensor], dst, _TAG))

    def recv(self, tensor: Tensor, src: int) -> Pending:
        return DirectWait(self._process_group.recv([tensor], src, _TAG))

    def all_reduce(self, tensor: Tensor) -> Pending:
        return DirectWait(self._process_group.allreduce([tensor], AllreduceOptions()))

    def cut(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._process_group.abort()
