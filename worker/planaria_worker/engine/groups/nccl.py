"""Groups of CUDA devices. NCCL's own abort wakes whoever waits; there are no sockets to cut.

Written after the sources of torch 2.13 and the documentation of NCCL. It has not run: no test of
ours has a GPU yet. Three things there decide what is done here:

- An abort waits for the call into NCCL that is under way, and for the device: it has a thread of
  its own. So the aborts of several groups never wait for each other's order on other ranks, either.
- It does not wake a call that connects to a peer for the first time. Whatever will be used is
  connected while the group is made; from then on no call waits for a peer.
- An operation that was aborted ends like a complete one.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroupNCCL, Store
from torch._C._distributed_c10d import Work as BackendWork

from planaria_worker.engine.groups.backends import Pending, RawProcessGroup
from planaria_worker.engine.groups.streams import beside

_TAG = 0
"""Between two ranks, messages of one direction arrive in the order in which they were sent."""
_LOOK_UP_SECONDS = 5e-5
"""How often who waits looks: torch's own bounded wait looks every millisecond, for each message."""
_FIRST_SUMS_BYTES = (8, 8 << 20, 64 << 20)
"""A message of the exchange, a bucket, and one that a user has made large: NCCL sums them in
different ways, each of which connects by itself."""
_ENVIRONMENT = {
    # An operation that fails or takes long must not end the process: the engine lives on.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # Behind a failure torch's watchdog would sleep for four times as long, with a lock in its hand.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    # Nobody reads the trace, for which every operation takes down its stack.
    "TORCH_FR_BUFFER_SIZE": "0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    # That messages of one group go one after the other is what groups for directions are for.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}


class NcclConnector:
    """One rank's end of a group of CUDA devices that is being made."""

    address = ""
    """NCCL exchanges its own through the store."""

    def __init__(
        self,
        device: torch.device,
        operation_timeout_seconds: float,
        *,
        is_line: bool,
        is_downward: bool,
    ) -> None:
        _set_environment(operation_timeout_seconds)
        self._device = device
        self._timeout = timedelta(seconds=operation_timeout_seconds)
        self._is_line = is_line
        self._step = -1 if is_downward else 1
        self._is_cut = threading.Event()
        self._backend: NcclBackend | None = None

    def connect(
        self, store: Store, rank: int, addresses: Sequence[str], *, timeout_seconds: float
    ) -> "NcclBackend":
        deadline = time.monotonic() + timeout_seconds
        store.set_timeout(timedelta(seconds=timeout_seconds))
        options = ProcessGroupNCCL.Options()
        options.config.blocking = 0  # otherwise a call cannot be left while a peer does not come
        options._timeout = self._timeout
        # torch has 32 streams of each priority and gives them out in turn. A pipeline's group may
        # outlive generations: it must not come to share one with a sum, and wait for its peers.
        options.is_high_priority_stream = self._is_line
        process_group: Any = ProcessGroupNCCL(store, rank, len(addresses), options)
        self._backend = backend = NcclBackend(process_group)
        try:
            process_group.eager_connect_single_device(self._device)  # begins it, no more
            self._meet(backend, rank, len(addresses), deadline)
        except RuntimeError:
            backend.cut()
            raise
        return backend

    def cut(self) -> None:
        self._is_cut.set()
        if self._backend is not None:
            self._backend.cut()

    def _meet(self, backend: "NcclBackend", rank: int, size: int, deadline: float) -> None:
        """Connects to the others, by one operation of every kind that will be used."""
        with beside(self._device):
            for operation in self._first_operations(backend, rank, size):
                seconds_left = max(deadline - time.monotonic(), 0.0)
                if not operation.wait(seconds_left, self._is_cut):
                    raise RuntimeError("cut while it connected")

    def _first_operations(self, backend: "NcclBackend", rank: int, size: int) -> Iterator[Pending]:
        """Each starts when the one before it is complete."""
        if not self._is_line:
            for num_bytes in _FIRST_SUMS_BYTES:
                yield backend.all_reduce(self._zeros(num_bytes))
            return
        before, behind = rank - self._step, rank + self._step
        if 0 <= before < size:
            yield backend.recv(self._zeros(1), before)
        if 0 <= behind < size:
            yield backend.send(self._zeros(1), behind)

    def _zeros(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)


class NcclBackend:
    """An NCCL process group."""

    def __init__(self, process_group: RawProcessGroup) -> None:
        self._process_group = process_group

    def send(self, tensor: Tensor, dst: int) -> Pending:
        return _Operation(self._process_group.send([tensor], dst, _TAG))

    def recv(self, tensor: Tensor, src: int) -> Pending:
        return _Operation(self._process_group.recv([tensor], src, _TAG))

    def has_message(self, src: int) -> bool:  # noqa: ARG002 - NCCL does not say
        return False

    def all_reduce(self, tensor: Tensor) -> Pending:
        return _Operation(self._process_group.allreduce([tensor], AllreduceOptions()))

    def cut(self) -> None:
        threading.Thread(
            target=_abort, args=(self._process_group,), name="abort-nccl", daemon=True
        ).start()


class _Operation:
    """What the device does on a stream of the group's, behind what was there when it was started.

    Waiting for it holds up the thread, not the stream: a stream that waited for a peer could not be
    told to stop. torch keeps the tensor until the device has let go of it.
    """

    def __init__(self, work: BackendWork) -> None:
        self._work = work

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not shut.is_set():
            if self._work.is_completed():
                self._work.wait()  # for the stream, which has not to wait any more; may raise
                return not shut.is_set()
            if time.monotonic() > deadline:
                raise RuntimeError(f"timed out after {timeout_seconds:g} s")
            time.sleep(_LOOK_UP_SECONDS)
        return False

    def is_over(self) -> bool:
        return self._work.is_completed()


def _abort(process_group: RawProcessGroup) -> None:
    with contextlib.suppress(RuntimeError):
        process_group.abort()


def _set_environment(operation_timeout_seconds: float) -> None:
    """Once, before the first group: torch and NCCL read most of it a single time."""
    # The bound of calls that cannot be woken; by default half an hour.
    bound = {"TORCH_NCCL_NONBLOCKING_TIMEOUT": str(math.ceil(operation_timeout_seconds))}
    for name, value in (_ENVIRONMENT | bound).items():
        if os.environ.get(name) != value:
            os.environ[name] = value
