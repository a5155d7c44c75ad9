"""Small sums over our own connections: each rank adds its part and passes the sum on.

gloo takes a dozen wake-ups for such a sum, a chain one for each rank that it passes.
"""

import select
import threading
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from planaria_worker.engine.groups.transport.backends import Pending
from planaria_worker.engine.groups.transport.tcp_link import Neighbour, connections_to


class TcpAllReduce:
    """One rank's connections to its neighbours in the chain."""

    def __init__(self, neighbours: Mapping[int, Neighbour]) -> None:
        self._neighbours = tuple(neighbours.values())
        self.peer_connections = connections_to(neighbours)
        self._last_sum: _Sum | None = None

    def all_reduce(self, tensor: Tensor) -> Pending:
        last = self._last_sum
        before = None if last is None or last.is_over() else last
        self._last_sum = _Sum(tensor, self._neighbours, before)
        return self._last_sum

    def cut(self) -> None:
        for neighbour in self._neighbours:
            neighbour.cut()


class _Sum:
    """A sum over all ranks that may not be complete yet; the previous one is waited for first.

    It goes along the chain both ways at once. What comes from one side sums the ranks on that side,
    and goes on to the other side with this rank's part.
    """

    def __init__(
        self, tensor: Tensor, neighbours: Sequence[Neighbour], before: "_Sum | None"
    ) -> None:
        self._total = tensor
        self._own = tensor.clone()
        self._before = before
        self._awaited = list(neighbours)
        self._onward = (
            dict(zip(neighbours, reversed(neighbours), strict=True)) if len(neighbours) > 1 else {}
        )
        self._sent: list[Pending] = []
        if not self._onward:  # an end of the chain
            self._sent = [neighbour.send(self._own) for neighbour in neighbours]

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        deadline = time.monotonic() + timeout_seconds
        before, self._before = self._before, None
        if before is not None and not before.wait(timeout_seconds, shut):
            return False
        while self._awaited:
            neighbour = self._first_to_send(timeout_seconds, deadline)
            part = torch.empty_like(self._own)
            if not neighbour.receive(part).wait(timeout_seconds, shut):
                return False
            self._awaited.remove(neighbour)
            self._total.add_(part)
            if neighbour in self._onward:
                self._sent.append(self._onward[neighbour].send(part.add_(self._own)))
        return all(sent.wait(timeout_seconds, shut) for sent in self._sent)

    def is_over(self) -> bool:
        return not self._awaited

    def _first_to_send(self, timeout_seconds: float, deadline: float) -> Neighbour:
        poll = select.poll()
        for neighbour in self._awaited:
            poll.register(neighbour.reader, select.POLLIN)
        ready = poll.poll(1000 * max(deadline - time.monotonic(), 0.0))
        if not ready:
            raise RuntimeError(f"timed out after {timeout_seconds:g} s")
        return next(each for each in self._awaited if each.reader.fileno() == ready[0][0])
