"""The sum of gradients over everybody who holds a layer: an all-reduce per run of layers.

An all-reduce works on a copy, a bucket at a time, so a failure in its middle leaves the local sums
of its layers as they were (ALGORITHMS.md 6). Behind the sums, each bucket carries how often every
microbatch is in them.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from planaria_worker.engine.communication import Group, GroupBroken, Work
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.ledger import Ledger
from planaria_worker.engine.plan_view import PlanView, Run
from planaria_worker.engine.stopwatch import Stopwatch

BUCKET_BYTES = 32 << 20
"""Layers are reduced together up to this size; a larger one alone."""
MAX_BUCKETS_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """Layers of one run that travel together."""

    run: Run
    layers: tuple[int, ...]
    group: Group | None
    """None: this engine alone holds them, and its local sums are the whole ones."""
    own_count: int
    """What each of this engine's microbatches counts."""


class Reduction:
    """Adds the local sums of all owners, for every layer of this engine."""

    def __init__(
        self,
        *,
        view: PlanView,
        groups: Mapping[str, Group],
        sums: Mapping[int, Tensor],
        num_microbatches: int,
        stopwatch: Stopwatch,
        failpoints: Failpoints,
    ) -> None:
        self._sums = sums
        self._num_microbatches = num_microbatches
        self._stopwatch = stopwatch
        self._failpoints = failpoints
        self._buckets = tuple(self._cut(view, groups))
        shared = [self._length(bucket) for bucket in self._buckets if bucket.group is not None]
        like = next(iter(sums.values()))
        self._buffers = [
            torch.empty(max(shared), dtype=like.dtype, device=like.device)
            for _ in range(min(MAX_BUCKETS_IN_FLIGHT, len(shared)))
        ]

    def run(self, ledger: Ledger) -> None:
        """Reduces every layer, the highest first, and enters it in the ledger when it is complete.

        Raises:
            GroupBroken: an owner is gone, or a group was shut; layers that are not yet complete
                keep their local sums.
        """
        counts = self._finished(ledger)
        in_flight: deque[tuple[_Bucket, Tensor, Work]] = deque()
        free = list(self._buffers)
        for bucket in self._buckets:
            if bucket.group is None:
                self._enter(ledger, bucket, counts * bucket.own_count)
                continue
            if not free:
                free.append(self._finish(ledger, *in_flight.popleft()))
            buffer = free.pop()
            filled = self._fill(bucket, buffer, counts)
            in_flight.append((bucket, buffer, bucket.group.iall_reduce(filled)))
        while in_flight:
            self._finish(ledger, *in_flight.popleft())
        self._stopwatch.lap("reduce")

    def _finish(self, ledger: Ledger, bucket: _Bucket, buffer: Tensor, work: Work) -> Tensor:
        self._failpoints.hit("reduce", ledger.step, bucket.layers[0])
        work.wait()
        counts = self._spread(bucket, buffer)
        self._enter(ledger, bucket, counts)
        self._stopwatch.lap("reduce")
        return buffer

    def _enter(self, ledger: Ledger, bucket: _Bucket, counts: Tensor) -> None:
        num_counted = int((counts == bucket.run.whole_count).sum())
        if bucket.group is not None and bucket.group.is_shut:
            # On CUDA nobody has waited before the line above: what came may be half a sum.
            raise GroupBroken(f"group {bucket.group.name}: shut during an all-reduce")
        for layer in bucket.layers:
            ledger.complete[layer] = num_counted

    def _finished(self, ledger: Ledger) -> Tensor:
        counts = torch.zeros(self._num_microbatches, dtype=torch.int64)
        for microbatch in ledger.finished:
            counts[microbatch] += 1
        return counts

    def _fill(self, bucket: _Bucket, buffer: Tensor, counts: Tensor) -> Tensor:
        """Copies the local sums and counts; returns the part of the buffer that is used."""
        for layer, part in self._parts(bucket, buffer):
            part.copy_(self._sums[layer])
        used = buffer[: self._length(bucket)]
        used[-self._num_microbatches :] = counts * bucket.own_count
        return used

    def _spread(self, bucket: _Bucket, buffer: Tensor) -> Tensor:
        """Puts the whole sums in place of the local ones; returns the counts."""
        for layer, part in self._parts(bucket, buffer):
            self._sums[layer].copy_(part)
        length = self._length(bucket)
        return buffer[length - self._num_microbatches : length]

    def _parts(self, bucket: _Bucket, buffer: Tensor) -> Iterator[tuple[int, Tensor]]:
        start = 0
        for layer in bucket.layers:
            end = start + self._sums[layer].numel()
            yield layer, buffer[start:end]
            start = end

    def _length(self, bucket: _Bucket) -> int:
        return sum(self._sums[layer].numel() for layer in bucket.layers) + self._num_microbatches

    def _cut(self, view: PlanView, groups: Mapping[str, Group]) -> Iterator[_Bucket]:
        """Cuts every run into buckets; from the plan alone, hence alike on all owners."""
        for run in view.runs:
            spec = view.owner_group(run)
            for layers in _cut_by_size(run.layers, self._sums, BUCKET_BYTES):
                yield _Bucket(
                    run=run,
                    layers=layers,
                    group=None if spec is None else groups[spec.name],
                    own_count=run.count(view.stage.layers),
                )


def _cut_by_size(
    layers: Sequence[int], sums: Mapping[int, Tensor], limit_bytes: int
) -> Iterator[tuple[int, ...]]:
    part: list[int] = []
    for layer in layers:
        if part and sum(sums[other].nbytes for other in (*part, layer)) > limit_bytes:
            yield tuple(part)
            part = []
        part.append(layer)
    yield tuple(part)
