"""Groups between threads of one process: for tests of the arithmetic, not of the network."""

import queue
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor

from planaria_worker.engine.groups import (
    DataParallelGroup,
    GroupBroken,
    Groups,
    GroupSpec,
    PipelineLink,
)

TIMEOUT_SECONDS = 60.0


@dataclass(slots=True)
class _Shared:
    """What the ranks of one group share."""

    size: int
    mail: dict[tuple[int, int], "queue.Queue[Tensor]"] = field(default_factory=dict)
    sums: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    """What each rank has given for each all-reduce, by its number."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    is_cut: bool = False

    def __post_init__(self) -> None:
        for source in range(self.size):
            for destination in range(self.size):
                self.mail[source, destination] = queue.Queue()


class _Done:
    """A work that was complete when it was started."""

    is_over = True

    def wait(self, timeout_seconds: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAllReduce:
    """An all-reduce under way."""

    shared: _Shared
    tensor: Tensor
    parts: dict[int, Tensor]

    @property
    def is_over(self) -> bool:
        return len(self.parts) == self.shared.size

    def wait(self, timeout_seconds: float | None = None) -> None:
        shared = self.shared
        with shared.changed:
            shared.changed.wait_for(lambda: self.is_over or shared.is_cut, TIMEOUT_SECONDS)
        if not self.is_over:
            raise GroupBroken("cut")
        total = self.parts[0].clone()
        for rank in range(1, shared.size):
            total += self.parts[rank]
        self.tensor.copy_(total)


class MemoryGroup:
    """One rank's end; the part of `PipelineLink` and `DataParallelGroup` that a step uses."""

    is_shut = False

    def __init__(self, shared: _Shared, rank: int) -> None:
        self._shared = shared
        self._num_sums = 0
        self.size = shared.size
        self.rank = rank

    def cut(self) -> None:
        """Lets nobody wait for a sum that somebody has not begun."""
        with self._shared.changed:
            self._shared.is_cut = True
            self._shared.changed.notify_all()

    def shut_unless_retained(self, reason: str) -> None:
        self.cut()

    def send(self, tensor: Tensor, dst: int) -> None:
        self._shared.mail[self.rank, dst].put(tensor.clone())

    def isend(self, tensor: Tensor, dst: int) -> _Done:
        self.send(tensor, dst)
        return _Done()

    def recv(self, tensor: Tensor, src: int) -> None:
        tensor.copy_(self._shared.mail[src, self.rank].get(timeout=TIMEOUT_SECONDS))

    def has_message(self, src: int) -> bool:
        return not self._shared.mail[src, self.rank].empty()

    def all_reduce(self, tensor: Tensor) -> None:
        self.iall_reduce(tensor).wait()

    def iall_reduce(self, tensor: Tensor) -> MemoryAllReduce:
        shared = self._shared
        with shared.changed:
            parts = shared.sums.setdefault(self._num_sums, {})
            parts[self.rank] = tensor.clone()
            shared.changed.notify_all()
        self._num_sums += 1
        return MemoryAllReduce(shared=shared, tensor=tensor, parts=parts)


def connect(
    specs: Mapping[str, Iterable[GroupSpec]], kind: type[MemoryGroup] = MemoryGroup
) -> dict[str, Groups]:
    """The groups of each engine, by engine id, from the specs of each."""
    shared: dict[str, _Shared] = {}
    groups: dict[str, Groups] = {}
    for engine_id, own in specs.items():
        links: dict[str, PipelineLink] = {}
        sums: dict[str, DataParallelGroup] = {}
        for spec in own:
            common = shared.setdefault(spec.name, _Shared(len(spec.members)))
            end = kind(common, spec.rank(engine_id))
            if spec.kind.is_link:
                links[spec.name] = cast(PipelineLink, end)
            else:
                sums[spec.name] = cast(DataParallelGroup, end)
        groups[engine_id] = Groups(links=links, data_parallel=sums)
    return groups
