"""The sum of gradients over everybody who holds a layer: an all-reduce per bucket of layers.

A bucket starts as soon as the last backward pass has come through its layers, so that it overlaps
with the rest of that pass. An all-reduce works on a copy, so that a failure at any moment leaves
the local sums as they were (ALGORITHMS.md 6). The copy is kept until the next attempt: whoever
misses the verdict can still be told to apply it. So the layers that others hold as well take the
memory of their sums twice. Behind the sums, each bucket carries how often every microbatch is in
them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planaria_worker.engine.communication import Group, GroupBroken, Work
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.launches import LaunchOrder, LayersOfBucket
from planaria_worker.engine.ledger import Ledger
from planaria_worker.engine.plan_view import PlanView
from planaria_worker.engine.runs import Run
from planaria_worker.engine.stopwatch import Stopwatch

BUCKET_BYTES = 8 << 20
"""Layers are reduced together up to this size; a larger one alone. Small enough that the first
bucket starts early in the last backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """Layers of one run that travel together."""

    run: Run
    layers: tuple[int, ...]
    """The highest first."""
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
        squared_norms: of these sums; found while the buckets behind are still under way.
    """

    def __init__(
        self,
        *,
        view: PlanView,
        groups: Mapping[str, Group],
        local: Mapping[int, Tensor],
        sizes: Mapping[int, int],
        squared_norm: Callable[[int, Tensor], float],
        dtype: torch.dtype,
        device: torch.device,
        num_microbatches: int,
        max_in_flight: int,
        stopwatch: Stopwatch,
        failpoints: Failpoints,
    ) -> None:
        """Makes the buffers.

        Args:
            view: which layers are summed with whom.
            groups: those of the owners, by name.
            local: this engine's own sums by layer; a layer without one adds nothing.
            sizes: elements of each layer's sum.
            squared_norm: of a layer's sum.
            dtype: of the sums.
            device: where they are.
            num_microbatches: microbatches of a step.
            max_in_flight: buckets that may be under way at once.
            stopwatch: counts seconds.
            failpoints: hit at `reduce`.
        """
        self._local = local
        self._device = device
        self._squared_norm = squared_norm
        self._num_microbatches = num_microbatches
        self._max_in_flight = max_in_flight
        self._stopwatch = stopwatch
        self._failpoints = failpoints
        self.reduced: dict[int, Tensor] = {}
        self.squared_norms: dict[int, float] = {}
        self._buckets = tuple(self._cut(view, groups, sizes, dtype, device))
        self._in_order = tuple(
            LayersOfBucket(layers=bucket.layers, is_tied=bucket.run.is_tied)
            for bucket in self._buckets
        )
        self._attempt: _Attempt | None = None

    @property
    def is_begun(self) -> bool:
        """Whether an attempt was begun, and not run yet."""
        return self._attempt is not None

    def begin(
        self,
        ledger: Ledger,
        check: Callable[[], None],
        upcoming: Sequence[int] = (),
    ) -> None:
        """Begins an attempt, ahead of the last microbatches that it sums; nothing starts yet.

        Args:
            ledger: of the step.
            check: raises FencedError when no sum may start any more.
            upcoming: microbatches that will be in every local sum that is said to be complete.
        """
        counts = torch.zeros(self._num_microbatches, dtype=torch.int64)
        for microbatch in (*ledger.finished, *upcoming):
            counts[microbatch] += 1
        counts = counts.to(self._device, non_blocking=True)  # here, since buckets wait for nothing
        order = LaunchOrder(self._in_order, self._max_in_flight)
        self._attempt = _Attempt(ledger=ledger, check=check, counts=counts, order=order)

    def complete(self, layer: int) -> None:
        """The local sum of a layer is complete: starts what may start now; never raises.

        It comes from within a backward pass, whose gradients stay true whatever becomes of sums. It
        waits for no peer; over gloo, for the GPU to have come so far. Over NCCL for nothing.
        """
        attempt = self._attempt
        if attempt is None or attempt.failure is not None:
            return
        attempt.order.complete(layer)
        try:
            self._launch(attempt)
        except (GroupBroken, FencedError) as error:
            attempt.failure = error.with_traceback(None)

    def run(self) -> None:
        """Reduces every layer, the highest first, and enters it in the ledger when it is complete.

        Raises:
            GroupBroken: an owner is gone, or a group was shut; the local sums are what they were.
            FencedError: no sum may start any more.
        """
        attempt, self._attempt = self._attempt, None
        assert attempt is not None  # noqa: S101 - it was begun
        if attempt.failure is not None:
            raise attempt.failure
        attempt.order.end_pass()
        self._launch(attempt)
        for place, bucket in enumerate(self._buckets):
            self._finish(attempt, bucket, attempt.works[place])
            self._launch(attempt)  # what had to wait for this one
            for layer in bucket.layers:
                self.squared_norms[layer] = self._squared_norm(layer, self.reduced[layer])
        self._stopwatch.lap("reduce")

    def _launch(self, attempt: "_Attempt") -> None:
        """Starts the buckets that may start."""
        while (place := attempt.order.take(attempt.num_in_flight)) is not None:
            bucket, work = self._buckets[place], None
            attempt.check()
            if bucket.group is not None and bucket.buffer is not None:
                self._fill(bucket, attempt.counts)
                attempt.ledger.launch(bucket.layers)
                work = bucket.group.iall_reduce(bucket.buffer)
            attempt.works.append(work)

    def _finish(self, attempt: "_Attempt", bucket: _Bucket, work: Work | None) -> None:
        if work is None or bucket.buffer is None:
            self._enter(attempt.ledger, bucket, attempt.counts * bucket.own_count)
            return
        self._failpoints.hit("reduce", attempt.ledger.step, min(bucket.layers))
        work.wait()
        self._enter(attempt.ledger, bucket, bucket.buffer[-self._num_microbatches :])
        self._stopwatch.lap("reduce")

    def _enter(self, ledger: Ledger, bucket: _Bucket, counts: Tensor) -> None:
        num_counted = int((counts == bucket.run.whole_count).sum())
        if bucket.group is not None and bucket.group.is_shut:
            # Whatever the transport said of it: what came may be half a sum.
            raise GroupBroken(f"group {bucket.group.name}: shut during an all-reduce")
        ledger.enter(bucket.layers, num_counted)

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
            for layers in cut_into_buckets(run.layers, sizes, BUCKET_BYTES // dtype.itemsize):
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


@dataclass(slots=True, kw_only=True, eq=False)
class _Attempt:
    """What has started of one attempt."""

    ledger: Ledger
    check: Callable[[], None]
    counts: Tensor
    """How often each microbatch is in the local sums."""
    order: LaunchOrder
    works: list[Work | None] = field(default_factory=list)
    """Of each bucket that has started; None where nobody else has to be asked."""
    failure: GroupBroken | FencedError | None = None
    """Why nothing more starts."""

    @property
    def num_in_flight(self) -> int:
        return sum(work is not None and not work.is_over for work in self.works)


def cut_into_buckets(
    layers: Sequence[int], sizes: Mapping[int, int], limit: int
) -> Iterator[tuple[int, ...]]:
    """Consecutive layers together, up to `limit` elements; the highest first.

    Args:
        layers: ascending.
        sizes: elements of each layer.
        limit: elements of a bucket; a larger layer is a bucket of its own.
    """
    part: list[int] = []
    for layer in reversed(layers):
        if part and sum(sizes[other] for other in (*part, layer)) > limit:
            yield tuple(part)
            part = []
        part.append(layer)
    yield tuple(part)
