"""What a process of the pool holds, and does when it is told to."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from integration.worker_comm.bounds import BOUND_SECONDS, GLOO_TIMEOUT_SECONDS
from integration.worker_comm.storm import Storm
from planaria_worker.engine.failpoints import Failpoint, Failpoints
from planaria_worker.engine.groups import (
    Communicators,
    DataParallelGroup,
    Group,
    GroupBroken,
    GroupSpec,
    PipelineLink,
    StoreServer,
)
from planaria_worker.engine.layers.copy import CommitFeed, CopyServer
from planaria_worker.engine_config import Transport
from unit.worker_comm.layers import HOST, SECRET, MemoryLayers


def large_layer() -> dict[str, torch.Tensor]:
    """More than the sockets' buffers take, in several chunks."""
    return {name: torch.arange(2_000_000) for name in ("weight", "exp_avg")}


@dataclass
class Member:
    """What a process holds; its methods are the orders."""

    engine_id: str
    device: str = "cpu"
    store: StoreServer | None = None
    sets: dict[str, Communicators] = field(default_factory=dict)
    storm: "Storm | None" = None
    server: CopyServer | None = None
    source: MemoryLayers | None = None

    def serve(self, version: int, failpoints: tuple[Failpoint, ...] = ()) -> str:
        """Offers layers 0 and 1."""
        self.source = MemoryLayers(version, {0: large_layer(), 1: large_layer()})
        self.server = CopyServer(
            HOST,
            engine_id=self.engine_id,
            job_secret=SECRET,
            source=self.source,
            feed=CommitFeed(),
            failpoints=Failpoints(failpoints),
        )
        return self.server.address

    def served(self) -> list[int]:
        assert self.source is not None
        return sorted(self.source.served)

    def wait_until_watched(self) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while not (self.server and self.server._beacon.num_taken and self.server._watchers):
            assert time.monotonic() < deadline, "nobody watches"
            time.sleep(0.001)

    def leave(self) -> None:
        assert self.server is not None
        self.server.close()

    def open_store(self) -> str:
        self.store = StoreServer(HOST)
        return self.store.address

    def build(
        self,
        generation: str,
        specs: Sequence[GroupSpec],
        store_address: str,
        timeout_seconds: float = GLOO_TIMEOUT_SECONDS,
        failpoints: tuple[Failpoint, ...] = (),
        transport: Transport = "gloo",
        device: str = "cpu",
    ) -> list[str]:
        if transport == "nccl":
            os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"  # heeded from NCCL 2.30 on
        self.device = device
        self.sets[generation] = Communicators(
            engine_id=self.engine_id,
            host=HOST,
            device=torch.device(device),
            transport=transport,
            operation_timeout_seconds=GLOO_TIMEOUT_SECONDS,
            failpoints=Failpoints(failpoints),
        )
        groups = self.sets[generation].build(
            specs,
            store_address=store_address,
            prefix=f"job/{generation}/",
            timeout_seconds=timeout_seconds,
        )
        ready = {group.name for group in groups.all}
        return [spec.name for spec in specs if spec.name in ready]

    def _link(self, generation: str, name: str) -> PipelineLink:
        return self.sets[generation].groups.links[name]

    def _data_parallel_group(self, generation: str, name: str) -> DataParallelGroup:
        return self.sets[generation].groups.data_parallel[name]

    def _group(self, generation: str, name: str) -> Group[Any]:
        return next(group for group in self.sets[generation].groups.all if group.name == name)

    def all_reduce(self, generation: str, group: str, values: list[float], dtype: str) -> list[Any]:
        tensor = torch.tensor(values, dtype=getattr(torch, dtype), device=self.device)
        self._data_parallel_group(generation, group).all_reduce(tensor)
        return self._arrived(tensor, generation, group)

    def all_reduce_many(self, generation: str, group: str, count: int, size: int) -> float:
        tensors = [torch.full((size,), float(index), device=self.device) for index in range(count)]
        works = [self._data_parallel_group(generation, group).iall_reduce(t) for t in tensors]
        for work in works:
            work.wait()
        return sum(float(tensor[0]) for tensor in tensors)

    def overlap(
        self, generation: str, group: str, num_elements: int, size: int
    ) -> tuple[float, float, float]:
        """Median seconds of products of matrices, of a sum, and of both at once."""
        total = torch.zeros(num_elements, device=self.device)
        matrix = torch.ones((size, size), device=self.device)
        sums = self._data_parallel_group(generation, group)

        def compute() -> None:
            for _ in range(8):
                torch.mm(matrix, matrix)
            torch.cuda.current_stream(matrix.device).synchronize()

        def both() -> None:
            work = sums.iall_reduce(total)
            compute()
            work.wait()

        def median_seconds(action: Callable[[], None]) -> float:
            samples = []
            for _ in range(9):
                sums.all_reduce(torch.zeros(1, device=self.device))  # all begin together
                start = time.perf_counter()
                action()
                samples.append(time.perf_counter() - start)
            return statistics.median(samples)

        actions = (compute, lambda: sums.all_reduce(total), both)
        computing, summing, at_once = map(median_seconds, actions)
        return computing, summing, at_once

    def send(self, generation: str, group: str, dst: int, values: list[float]) -> None:
        tensor = torch.tensor(values, dtype=torch.float32, device=self.device)
        self._link(generation, group).send(tensor, dst)

    def recv(self, generation: str, group: str, src: int, size: int) -> list[Any]:
        tensor = torch.zeros(size, device=self.device)
        self._link(generation, group).recv(tensor, src)
        return self._arrived(tensor, generation, group)

    def exchange(
        self, generation: str, outgoing: str, incoming: str, peer: int, messages: list[list[float]]
    ) -> list[list[Any]]:
        """Sends messages and receives as many of the same sizes, all under way at once."""
        links = self.sets[generation].groups.links
        sent = [torch.tensor(values, device=self.device) for values in messages]
        received = [torch.zeros_like(tensor) for tensor in sent]
        works = [links[outgoing].isend(tensor, peer) for tensor in sent]
        works += [links[incoming].irecv(tensor, peer) for tensor in received]
        for work in works:
            work.wait()
        return [self._arrived(tensor, generation, incoming) for tensor in received]

    def _arrived(self, tensor: torch.Tensor, generation: str, group: str) -> list[Any]:
        """As in the engine: a group that was shut is not believed."""
        values: list[Any] = tensor.tolist()
        if self._group(generation, group).is_shut:
            raise GroupBroken("shut meanwhile")
        return values

    def shut(self, generation: str) -> None:
        self.sets[generation].shut()

    def shut_group(self, generation: str, group: str) -> None:
        self._group(generation, group).shut()

    def forget(self, generation: str) -> None:
        self.sets.pop(generation).shut()

    def count_resources(self, expected: tuple[int, int] | None = None) -> tuple[int, int]:
        """Descriptors and threads; waits until they are no more than expected."""
        deadline = time.monotonic() + BOUND_SECONDS
        while True:
            found = len(listed("/proc/self/fd")), len(listed("/proc/self/task"))
            fits = expected is None or all(f <= e for f, e in zip(found, expected, strict=True))
            if fits or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    def start_storm(self, store_address: str) -> None:
        self.storm = Storm(store_address)

    def stop_storm(self) -> tuple[int, list[str]]:
        assert self.storm is not None
        return self.storm.stop()


def listed(folder: str) -> list[int]:
    return sorted(int(entry.name) for entry in Path(folder).iterdir())
