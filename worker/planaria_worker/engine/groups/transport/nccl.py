"""Groups of CUDA devices. NCCL's own abort ends all waits; there are no sockets to cut.

Written after the sources of torch 2.13 and the documentation of NCCL; it has not run on a GPU yet.
Three of their properties decide what is done here:

- An abort waits for the call into NCCL that is under way, and for the device: each has a thread of
  its own. So the aborts of several groups do not wait for each other's order on other ranks either.
- It does not end a call that connects to a peer for the first time. Everything that will be used is
  connected while the group is built; from then on no call waits for a peer.
- An operation that was aborted ends like a complete one.
"""

import contextlib
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroupNCCL, Store
from torch._C._distributed_c10d import Work as BackendWork

from planaria_worker.engine.groups.streams import own_stream
from planaria_worker.engine.groups.transport.backends import Pending, RawProcessGroup

B = TypeVar("B", bound="_NcclBackend")

_TAG = 0
"""Between two ranks, messages of one direction arrive in the order in which they were sent."""
_POLL_SECONDS = 5e-5
"""How often a wait looks: torch's own bounded wait looks every millisecond."""
_FIRST_SUMS_BYTES = (8, 8 << 20, 64 << 20)
"""A vote, a bucket, and a larger bucket that a user has asked for: NCCL sums them by different
algorithms, each with connections of its own."""
_ENVIRONMENT = {
    # An operation that fails or takes long must not end the process: the engine lives on.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # After a failure torch's watchdog would sleep for four times as long while it holds a lock.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    # The trace, for which every operation records its stack, is never read.
    "TORCH_FR_BUFFER_SIZE": "0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    # Each direction has a group because the messages of one group go one after the other.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}


class _NcclConnector(ABC, Generic[B]):
    """One rank's end of a group of CUDA devices that is being built."""

    address = ""
    """NCCL exchanges its own through the store."""
    _is_high_priority: bool
    """torch has 32 streams of each priority and gives them out in turn. A pipeline's link may
    outlive generations: it must not share a stream with a sum, and so wait for the sum's peers."""

    def __init__(self, device: torch.device, operation_timeout_seconds: float) -> None:
        _set_environment(operation_timeout_seconds)
        self._device = device
        self._timeout = timedelta(seconds=operation_timeout_seconds)
        self._is_cut = threading.Event()
        self._backend: B | None = None

    def connect(
        self, store: Store, rank: int, addresses: Sequence[str], *, timeout_seconds: float
    ) -> B:
        deadline = time.monotonic() + timeout_seconds
        store.set_timeout(timedelta(seconds=timeout_seconds))
        options = ProcessGroupNCCL.Options()
        options.config.blocking = 0  # otherwise a call for a peer that does not come never returns
        options._timeout = self._timeout
        options.is_high_priority_stream = self._is_high_priority
        process_group: Any = ProcessGroupNCCL(store, rank, len(addresses), options)
        self._backend = backend = self._make_backend(process_group)
        try:
            process_group.eager_connect_single_device(self._device)  # only starts it
            self._meet(backend, rank, len(addresses), deadline)
        except RuntimeError:
            backend.cut()
            raise
        return backend

    def cut(self) -> None:
        self._is_cut.set()
        if self._backend is not None:
            self._backend.cut()

    @abstractmethod
    def _make_backend(self, process_group: RawProcessGroup) -> B: ...

    @abstractmethod
    def _first_operations(self, backend: B, rank: int, size: int) -> Iterator[Pending]:
        """One operation of every kind that will be used; each starts after the one before."""

    def _meet(self, backend: B, rank: int, size: int, deadline: float) -> None:
        """Connect to the other ranks, by the first operations."""
        with own_stream(self._device):
            for operation in self._first_operations(backend, rank, size):
                seconds_left = max(deadline - time.monotonic(), 0.0)
                if not operation.wait(seconds_left, self._is_cut):
                    raise RuntimeError("cut while it connected")

    def _zeros(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)


class NcclLinkConnector(_NcclConnector["NcclLink"]):
    """One stage's end of a pipeline link that is being built."""

    _is_high_priority = True

    def __init__(
        self, device: torch.device, operation_timeout_seconds: float, *, step: int
    ) -> None:
        """Connect nothing yet.

        Args:
            device: of the tensors.
            operation_timeout_seconds: bound of calls that cannot be ended.
            step: from the rank of a sender to that of the receiver: 1 or -1.
        """
        super().__init__(device, operation_timeout_seconds)
        self._step = step

    def _make_backend(self, process_group: RawProcessGroup) -> "NcclLink":
        return NcclLink(process_group)

    def _first_operations(self, backend: "NcclLink", rank: int, size: int) -> Iterator[Pending]:
        source, destination = rank - self._step, rank + self._step
        if 0 <= source < size:
            yield backend.recv(self._zeros(1), source)
        if 0 <= destination < size:
            yield backend.send(self._zeros(1), destination)


class NcclAllReduceConnector(_NcclConnector["NcclAllReduce"]):
    """One owner's end of a data-parallel group that is being built."""

    _is_high_priority = False

    def _make_backend(self, process_group: RawProcessGroup) -> "NcclAllReduce":
        return NcclAllReduce(process_group)

    def _first_operations(
        self,
        backend: "NcclAllReduce",
        rank: int,  # noqa: ARG002 - all ranks do the same
        size: int,  # noqa: ARG002
    ) -> Iterator[Pending]:
        for num_bytes in _FIRST_SUMS_BYTES:
            yield backend.all_reduce(self._zeros(num_bytes))


class _NcclBackend:
    """An NCCL process group."""

    def __init__(self, process_group: RawProcessGroup) -> None:
        self._process_group = process_group

    def cut(self) -> None:
        threading.Thread(
            target=_abort, args=(self._process_group,), name="abort-nccl", daemon=True
        ).start()


class NcclLink(_NcclBackend):
    """Messages over NCCL."""

    def send(self, tensor: Tensor, dst: int) -> Pending:
        return _Operation(self._process_group.send([tensor], dst, _TAG))

    def recv(self, tensor: Tensor, src: int) -> Pending:
        return _Operation(self._process_group.recv([tensor], src, _TAG))

    def has_message(self, src: int) -> bool:  # noqa: ARG002 - NCCL has no call for it
        return False


class NcclAllReduce(_NcclBackend):
    """Sums over NCCL."""

    def all_reduce(self, tensor: Tensor) -> Pending:
        return _Operation(self._process_group.allreduce([tensor], AllreduceOptions()))


class _Operation:
    """An operation on a stream of the group's, after what was on it when the operation started.

    Waiting for it blocks the thread, not the stream: nothing can stop a stream that waits for a
    peer. torch keeps the tensor until the device no longer uses it.
    """

    def __init__(self, work: BackendWork) -> None:
        self._work = work

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not shut.is_set():
            if self._work.is_completed():
                self._work.wait()  # lets the stream go on; may raise
                return not shut.is_set()
            if time.monotonic() > deadline:
                raise RuntimeError(f"timed out after {timeout_seconds:g} s")
            time.sleep(_POLL_SECONDS)
        return False

    def is_over(self) -> bool:
        return self._work.is_completed()


def _abort(process_group: RawProcessGroup) -> None:
    with contextlib.suppress(RuntimeError):
        process_group.abort()


def _set_environment(operation_timeout_seconds: float) -> None:
    """Set what torch and NCCL read, most of it once: call it before the first group."""
    # The bound of calls that cannot be ended; by default half an hour.
    bound = {"TORCH_NCCL_NONBLOCKING_TIMEOUT": str(math.ceil(operation_timeout_seconds))}
    for name, value in (_ENVIRONMENT | bound).items():
        if os.environ.get(name) != value:
            os.environ[name] = value
