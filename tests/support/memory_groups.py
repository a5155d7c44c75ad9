"""Groups between threads of one process: for tests of the arithmetic, not of the network."""

import queue
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor

from planaria_worker.engine.communication import Group
from planaria_worker.engine.plan_view import GroupSpec

TIMEOUT_SECONDS = 60.0


@dataclass(slots=True)
class _Shared:
    """What the ranks of one group share."""

    size: int
    mail: dict[tuple[int, int], "queue.Queue[Tensor]"] = field(default_factory=dict)
    barrier: threading.Barrier = field(init=False)
    parts: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size)
        for source in range(self.size):
            for destination in range(self.size):
                self.mail[source, destination] = queue.Queue()


class _Done:
    """A work that was complete when it was started."""

    is_over = True

    def wait(self, timeout_seconds: float | None = None) -> None: ...


class MemoryGroup:
    """One rank's end; the part of `Group` that a step uses."""

    is_shut = False

    def __init__(self, shared: _Shared, rank: int) -> None:
        self._shared = shared
        self.size = shared.size
        self.rank = rank

    def send(self, tensor: Tensor, dst: int) -> None:
        self._shared.mail[self.rank, dst].put(tensor.clone())

    def isend(self, tensor: Tensor, dst: int) -> _Done:
        self.send(tensor, dst)
        return _Done()

    def recv(self, tensor: Tensor, src: int) -> None:
        tensor.copy_(self._shared.mail[src, self.rank].get(timeout=TIMEOUT_SECONDS))

    def all_reduce(self, tensor: Tensor) -> None:
        shared = self._shared
        if shared.barrier.wait(TIMEOUT_SECONDS) == 0:
            shared.parts.clear()
        shared.barrier.wait(TIMEOUT_SECONDS)
        shared.parts.append(tensor.clone())
        if shared.barrier.wait(TIMEOUT_SECONDS) == 0:
            for other in shared.parts[1:]:
                shared.parts[0] += other
        shared.barrier.wait(TIMEOUT_SECONDS)
        tensor.copy_(shared.parts[0])

    def iall_reduce(self, tensor: Tensor) -> _Done:
        self.all_reduce(tensor)
        return _Done()


def connect(
    specs: Mapping[str, Iterable[GroupSpec]], kind: type[MemoryGroup] = MemoryGroup
) -> dict[str, dict[str, Group]]:
    """The groups of each engine, by engine id and name, from the specs of each."""
    shared: dict[str, _Shared] = {}
    groups: dict[str, dict[str, Group]] = {}
    for engine_id, own in specs.items():
        groups[engine_id] = {}
        for spec in own:
            common = shared.setdefault(spec.name, _Shared(len(spec.members)))
            end = kind(common, spec.rank(engine_id))
            groups[engine_id][spec.name] = cast(Group, end)
    return groups
