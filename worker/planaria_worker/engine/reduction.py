"""The sum of gradients over everybody who holds a layer: an all-reduce per run of layers.

An all-reduce works on a copy, so that a failure at any moment leaves the local sums as they were
(ALGORITHMS.md 6). The copy is kept until the next attempt: whoever misses the verdict can still be
told to apply it. So the layers that others hold as well take the memory of their sums twice. Behind
the sums, each bucket carries how often every microbatch is in them.
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
    own_count: int
    """What each of this engine's microbatches counts."""
    group: Group | None
    """None: this engine alone holds them, and its local sums are the whole ones."""
    buffer: Tensor | None
    """The sums of the layers, one behind the other, and the counts; None without a group."""


class Reduction:
    """Adds the local sums of all owners, for every layer of this engine.

    Attributes:
        reduced: for each layer the sum over its owners, once it is complete. The local sum itself
            where there is no other owner.
    """

    def __init__(
        self,
        *,
        view: PlanView,
        groups: Mapping[str, Group],
        local: Mapping[int, Tensor],
        sizes: Mapping[int, int],
        dtype: torch.dtype,
        device: torch.device,
        num_microbatches: int,
        stopwatch: Stopwatch,
        failpoints: Failpoints,
    ) -> None:
        """Makes the buffers.

        Args:
            view: which layers are summed with whom.
            groups: those of the owners, by name.
            local: this engine's own sums by layer; a layer without one adds nothing.
            sizes: elements of each layer's sum.
            dtype: of the sums.
            device: where they are.
            num_microbatches: microbatches of a step.
            stopwatch: counts seconds.
            failpoints: hit at `reduce`.
        """
        self._local = local
        self._num_microbatches = num_microbatches
        self._stopwatch = stopwatch
        self._failpoints = failpoints
        self.reduced: dict[int, Tensor] = {}
        self._buckets = tuple(self._cut(view, groups, sizes, dtype, device))

    def run(self, ledger: Ledger) -> None:
        """Reduces every layer, the highest first, and enters it in the ledger when it is complete.

        Raises:
            GroupBroken: an owner is gone, or a group was shut; the local sums are what they were.
        """
        counts = self._finished(ledger)
        in_flight: deque[tuple[_Bucket, Work]] = deque()
        for bucket in self._buckets:
            if bucket.group is None or bucket.buffer is None:
                self._enter(ledger, bucket, counts * bucket.own_count)
                continue
            if len(in_flight) == MAX_BUCKETS_IN_FLIGHT:
                self._finish(ledger, *in_flight.popleft())
            self._fill(bucket, counts)
            ledger.launch(bucket.layers)
            in_flight.append((bucket, bucket.group.iall_reduce(bucket.buffer)))
        while in_flight:
            self._finish(ledger, *in_flight.popleft())
        self._stopwatch.lap("reduce")

    def _finish(self, ledger: Ledger, bucket: _Bucket, work: Work) -> None:
        self._failpoints.hit("reduce", ledger.step, bucket.layers[0])
        work.wait()
        assert bucket.buffer is not None  # noqa: S101 - what is in flight has one
        self._enter(ledger, bucket, bucket.buffer[-self._num_microbatches :])
        self._stopwatch.lap("reduce")

    def _enter(self, ledger: Ledger, bucket: _Bucket, counts: Tensor) -> None:
        num_counted = int((counts == bucket.run.whole_count).sum())
        if bucket.group is not None and bucket.group.is_shut:
            # On CUDA nobody has waited before the line above: what came may be half a sum.
            raise GroupBroken(f"group {bucket.group.name}: shut during an all-reduce")
        ledger.enter(bucket.layers, num_counted)

    def _finished(self, ledger: Ledger) -> Tensor:
        counts = torch.zeros(self._num_microbatches, dtype=torch.int64)
        for microbatch in ledger.finished:
            counts[microbatch] += 1
        return counts

    def _fill(self, bucket: _Bucket, counts: Tensor) -> None:
        """Copies the local sums and counts."""
        for layer in bucket.layers:
            if layer in self._local:
                self.reduced[layer].copy_(self._local[layer])
            else:
                self.reduced[layer].zero_()
        assert bucket.buffer is not None  # noqa: S101 - only a bucket with a group is filled
        bucket.buffer[-self._num_microbatches :] = counts * bucket.own_count

    def _cut(
        self,
        view: PlanView,
        groups: Mapping[str, Group],
        sizes: Mapping[int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Iterator[_Bucket]:
        """Cuts every run into buckets; from the plan alone, hence alike on all owners."""
        for run in view.runs:
            spec = view.owner_group(run)
            for layers in _cut_by_size(run.layers, sizes, BUCKET_BYTES // dtype.itemsize):
                buffer = None
                if spec is not None:
                    length = sum(sizes[layer] for layer in layers) + self._num_microbatches
                    buffer = torch.empty(length, dtype=dtype, device=device)
                self._place(layers, sizes, buffer)
                yield _Bucket(
                    run=run,
                    layers=layers,
                    own_count=run.count(view.computed_layers),
                    group=None if spec is None else groups[spec.name],
                    buffer=buffer,
                )

    def _place(
        self, layers: Sequence[int], sizes: Mapping[int, int], buffer: Tensor | None
    ) -> None:
        """Says where the sum of each layer of a bucket will be."""
        start = 0
        for layer in layers:
            end = start + sizes[layer]
            self.reduced[layer] = self._local[layer] if buffer is None else buffer[start:end]
            start = end


def _cut_by_size(
    layers: Sequence[int], sizes: Mapping[int, int], limit: int
) -> Iterator[tuple[int, ...]]:
    part: list[int] = []
    for layer in layers:
        if part and sum(sizes[other] for other in (*part, layer)) > limit:
            yield tuple(part)
            part = []
        part.append(layer)
    yield tuple(part)
