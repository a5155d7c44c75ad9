"""Gradient reduction: an all-reduce per bucket over all owners of its layers.

A bucket starts as soon as the last backward pass has come through its layers, and so overlaps with
the rest of that pass. It sums a copy, so that a failure at any moment leaves the local sums as they
were (protocol/step.md); there are as many copies as buckets may be in flight. After the values,
each bucket carries how often every microbatch is in them: a sum that holds each once is complete,
replaces the local sum, and stays valid until the commit (`complete_sums`). It is left in the copy,
and moved only if that copy is needed again before the commit.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import (
    DataParallelGroup,
    GroupBroken,
    Work,
    own_stream,
    require_open,
)
from planaria_worker.engine.numerics.accumulate import GradientSums, Piece
from planaria_worker.engine.plan.owned_layers import OwnedLayers
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.reduction.complete_sum_query import CompleteSumQuery
from planaria_worker.engine.reduction.complete_sums import Part, cut_into_buckets, part_of
from planaria_worker.engine.reduction.launch_order import LaunchOrder
from planaria_worker.engine.step_progress import StepProgress
from planaria_worker.engine.telemetry import Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """Pieces of layers with the same owners, reduced together."""

    owned: OwnedLayers
    pieces: tuple[Piece, ...]
    """The highest layer first."""
    own_count: int
    """What each of this engine's microbatches counts."""
    group: DataParallelGroup | None
    """None: this engine is the only owner, and its local sums are the complete ones."""

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(piece.layer for piece in self.pieces))

    def length(self, num_microbatches: int) -> int:
        """Return the elements that are sent: all values, then a row of counts for each piece."""
        return sum(piece.num_elements + num_microbatches for piece in self.pieces)


class GradientReduction:
    """Sums the gradients of every layer of this engine over all its owners.

    Attributes:
        squared_norms: of the sums; computed while later buckets are still in flight.
    """

    def __init__(
        self,
        *,
        view: PlanView,
        groups: Mapping[str, DataParallelGroup],
        sums: GradientSums,
        squared_norm: Callable[[int, Tensor], float],
        device: torch.device,
        num_microbatches: int,
        bucket_bytes: int,
        max_in_flight: int,
        stopwatch: Stopwatch,
        failpoints: Failpoints,
    ) -> None:
        """Allocate the copies; move sums that are still in those of the reduction before.

        Args:
            view: which layers are summed with which engines.
            groups: the owners' groups, by name.
            sums: the local ones; each becomes the complete one.
            squared_norm: of a layer's sum.
            device: where the sums are.
            num_microbatches: microbatches of a step.
            bucket_bytes: what is summed at once; the same in all plans.
            max_in_flight: buckets that may be in flight at once.
            stopwatch: counts seconds.
            failpoints: hit at `reduce`.
        """
        sums.copy_to_own_buffers(sums.sums)
        self._sums = sums
        self._device = device
        self._squared_norm = squared_norm
        self._num_microbatches = num_microbatches
        self._bucket_length = bucket_bytes // sums.dtype.itemsize
        self._max_in_flight = max_in_flight
        self._stopwatch = stopwatch
        self._failpoints = failpoints
        self.squared_norms: dict[int, float] = {}
        self._buckets = tuple(self._cut(view, groups))
        self._in_order = tuple(bucket.layers for bucket in self._buckets)
        self._asks_early = device.type == "cpu"  # on others it would take the device's time
        self._copies = self._allocate()
        self._lent: deque[_Lent] = deque()
        self._attempt: _Attempt | None = None

    def is_begun(self, progress: StepProgress) -> bool:
        """Whether an attempt for this step was begun, and not run yet."""
        return self._attempt is not None and self._attempt.progress is progress

    def begin(
        self,
        progress: StepProgress,
        check: Callable[[], None],
        last_microbatches: Sequence[int] = (),
        *,
        is_resumed: bool = False,
    ) -> None:
        """Begin an attempt, before the last backward pass; no sum starts yet.

        Args:
            progress: of the step.
            check: raises FencedError when no sum may start any more.
            last_microbatches: those that each local sum will hold as well when it is complete.
            is_resumed: whether attempts of other generations may have left complete sums; the same
                on all owners. Then the owners tell each other before any sum starts.
        """
        while self._lent:
            self._reclaim()
        counts = torch.zeros(self._num_microbatches, dtype=torch.int64)
        for microbatch in (*progress.finished, *last_microbatches):
            counts[microbatch] += 1
        counts = counts.to(self._device, non_blocking=True)
        order = LaunchOrder(self._in_order, self._max_in_flight)
        attempt = self._attempt = _Attempt(
            progress=progress,
            check=check,
            counts=counts,
            order=order,
            query=CompleteSumQuery(self._device),
            asks_late=is_resumed and not self._asks_early,
        )
        if is_resumed and self._asks_early:
            with attempt.noting_failure():
                self._ask(attempt)

    def complete(self, layer: int) -> None:
        """Start what may start now that the local sum of a layer is complete; never raise.

        Called within a backward pass, whose gradients stay valid whatever becomes of the sums. It
        waits for no peer. Over gloo it waits until the GPU has computed the sum; over NCCL for
        nothing, unless a sum shares its stream.
        """
        attempt = self._attempt
        if attempt is None or attempt.failure is not None:
            return
        attempt.order.complete(layer)
        if attempt.asks_late:
            return
        with attempt.noting_failure():
            attempt.query.hear_answered()
            self._launch(attempt)
            while attempt.is_oldest_over:
                self._finish_oldest(attempt)
                self._launch(attempt)

    def run(self) -> None:
        """Reduce every layer, the highest first, and note it in the step progress when complete.

        Raises:
            GroupBroken: an owner is gone, or a group was shut; incomplete sums are still local.
            FencedError: no sum may start any more.
        """
        attempt, self._attempt = self._attempt, None
        assert attempt is not None  # noqa: S101 - it was begun
        if attempt.failure is not None:
            raise attempt.failure
        if attempt.asks_late:
            self._ask(attempt)
        attempt.query.hear_all()
        attempt.order.end_pass()
        self._launch(attempt)
        for index, bucket in enumerate(self._buckets):
            if bucket.group is not None:
                self._failpoints.hit("reduce", attempt.progress.step, min(bucket.layers))
            if index == attempt.num_finished:
                self._finish_oldest(attempt)
                self._stopwatch.lap("reduce")
                self._launch(attempt)  # what had to wait for this one
            self._take_norms(bucket)
        self._stopwatch.lap("reduce")

    def _ask(self, attempt: "_Attempt") -> None:
        """Tell the other owners how much of each layer is complete here, group by group."""
        layers: dict[DataParallelGroup, list[int]] = {}  # in the one order of all owners
        for bucket in self._buckets:
            if bucket.group is not None:
                known = layers.setdefault(bucket.group, [])
                known.extend(layer for layer in bucket.layers if layer not in known)
        attempt.query.ask(layers, self._sums.num_complete, attempt.check)

    def _launch(self, attempt: "_Attempt") -> None:
        """Start the buckets that may start."""
        while not self._is_next_unheard(attempt):
            index = attempt.order.take(attempt.num_in_flight)
            if index is None:
                return
            attempt.check()
            bucket = self._buckets[index]
            begun = _Begun(bucket=bucket)
            self._sums.settle(bucket.layers)
            if bucket.group is not None:
                if not self._copies:
                    self._reclaim()
                begun.copy = self._copies.pop()
                sent = begun.copy[: bucket.length(self._num_microbatches)]
                self._fill(bucket, bucket.group.rank, attempt, sent)
                attempt.progress.launch(bucket.layers)
                begun.work = bucket.group.iall_reduce(sent)
            attempt.begun.append(begun)

    def _is_next_unheard(self, attempt: "_Attempt") -> bool:
        """Whether the next bucket waits for what its owners have complete."""
        index = attempt.order.next_bucket
        return index is not None and attempt.query.is_unheard(self._buckets[index].group)

    def _fill(self, bucket: _Bucket, rank: int, attempt: "_Attempt", sent: Tensor) -> None:
        """Copy what this engine adds, and how often every microbatch is in it."""
        values, rows = self._parts(bucket, sent)
        for piece, value, row in zip(bucket.pieces, values, rows, strict=True):
            part = attempt.part_of(rank, piece)
            if part is Part.NOTHING:
                value.zero_()
            else:
                value.copy_(self._sums.part(piece))
            row.copy_(self._counts(bucket, piece, part, attempt))

    def _counts(self, bucket: _Bucket, piece: Piece, part: Part, attempt: "_Attempt") -> Tensor:
        """Return how often every microbatch is in what this engine adds."""
        if part is Part.LOCAL:  # a sum out of range must not seem complete
            return attempt.counts * bucket.own_count * self._sums.in_range(piece.layer)
        count = bucket.owned.complete_count if part is Part.COMPLETE else 0
        return torch.full_like(attempt.counts, count)

    def _finish_oldest(self, attempt: "_Attempt") -> None:
        """Wait for a bucket; its complete sums replace the local ones."""
        begun = attempt.begun[attempt.num_finished]
        bucket, copy, work = begun.bucket, begun.copy, begun.work
        values: Sequence[Tensor | None] = [None] * len(bucket.pieces)
        if bucket.group is not None and copy is not None and work is not None:
            with own_stream(self._device):
                work.wait()
                values, arrived = self._parts(bucket, copy)
                rows = [*arrived.cpu()]
            require_open(bucket.group, "an all-reduce")
        else:
            rows = [
                self._counts(bucket, piece, attempt.part_of(0, piece), attempt)
                for piece in bucket.pieces
            ]
        is_lent = False
        for piece, value, row in zip(bucket.pieces, values, rows, strict=True):
            num_counted = attempt.count(
                piece.layer, int((row == bucket.owned.complete_count).sum())
            )
            if value is not None and num_counted == self._num_microbatches:
                is_lent |= self._sums.put_complete(piece, value)
            if piece.end == self._sums.sums[piece.layer].numel():
                attempt.progress.finish([piece.layer], num_counted)
        attempt.num_finished += 1
        begun.copy = begun.work = None
        if copy is not None and is_lent:
            self._lent.append(_Lent(layers=bucket.layers, copy=copy))
        elif copy is not None:
            self._copies.append(copy)

    def _reclaim(self) -> None:
        """Free the copy that has held complete sums for the longest time."""
        lent = self._lent.popleft()
        self._sums.copy_to_own_buffers(lent.layers)
        self._copies.append(lent.copy)

    def _take_norms(self, bucket: _Bucket) -> None:
        totals = self._sums.totals
        for piece in bucket.pieces:
            total = totals[piece.layer]
            if piece.end == total.numel():
                self.squared_norms[piece.layer] = self._squared_norm(piece.layer, total)

    def _parts(self, bucket: _Bucket, copy: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Views: the values of each piece; how often each microbatch is in it, by piece."""
        lengths = [piece.num_elements for piece in bucket.pieces]
        num_values, length = sum(lengths), bucket.length(self._num_microbatches)
        rows = copy[num_values:length].view(len(lengths), self._num_microbatches)
        return copy[:num_values].split_with_sizes(lengths), rows

    def _cut(self, view: PlanView, groups: Mapping[str, DataParallelGroup]) -> Iterator[_Bucket]:
        """Cut layers into buckets; from the plan alone, hence alike on all owners."""
        sizes = {layer: total.numel() for layer, total in self._sums.sums.items()}
        for owned in view.owned_layers:
            spec = view.owner_group(owned)
            for pieces in cut_into_buckets(owned.layers, sizes, self._bucket_length):
                yield _Bucket(
                    owned=owned,
                    pieces=pieces,
                    own_count=owned.count(view.computed_layers),
                    group=None if spec is None else groups[spec.name],
                )

    def _allocate(self) -> list[Tensor]:
        """Allocate a copy for each bucket that may be in flight."""
        shared = [bucket for bucket in self._buckets if bucket.group is not None]
        length = max((bucket.length(self._num_microbatches) for bucket in shared), default=0)
        return [
            torch.empty(length, dtype=self._sums.dtype, device=self._device)
            for _ in range(min(self._max_in_flight, len(shared)))
        ]


@dataclass(slots=True, kw_only=True, eq=False)
class _Begun:
    """A bucket of an attempt, from its start on."""

    bucket: _Bucket
    copy: Tensor | None = None
    """What is summed, until the bucket is finished; None without a group."""
    work: Work | None = None

    @property
    def is_over(self) -> bool:
        return self.work is not None and self.work.is_over


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lent:
    """A copy that holds complete sums until it is needed, or the step is over."""

    layers: tuple[int, ...]
    copy: Tensor


@dataclass(slots=True, kw_only=True, eq=False)
class _Attempt:
    """The state of one attempt."""

    progress: StepProgress
    check: Callable[[], None]
    counts: Tensor
    """How often each microbatch is in the local sums."""
    order: LaunchOrder
    query: CompleteSumQuery
    asks_late: bool
    """Whether owners ask each other in `run`, and no sum starts before."""
    begun: list[_Begun] = field(default_factory=list)
    num_finished: int = 0
    """How many of those that have begun are finished; the oldest first."""
    num_counted: dict[int, int] = field(default_factory=dict)
    """Of each layer: microbatches that are in all its finished pieces exactly once."""
    failure: GroupBroken | FencedError | None = None
    """Why nothing more starts."""

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Keep an error for `run`, since it must not be raised within a pass."""
        try:
            yield
        except (GroupBroken, FencedError) as error:
            self.failure = error.with_traceback(None)

    @property
    def num_in_flight(self) -> int:
        return sum(begun.copy is not None for begun in self.begun[self.num_finished :])

    @property
    def is_oldest_over(self) -> bool:
        return self.num_finished < len(self.begun) and self.begun[self.num_finished].is_over

    def part_of(self, rank: int, piece: Piece) -> Part:
        """Return what a rank adds to a piece; a single owner is rank 0."""
        return part_of(rank, piece, self.query.holder(piece.layer))

    def count(self, layer: int, num_counted: int) -> int:
        """Count another piece of a layer; return the least count of all its pieces."""
        least = min(num_counted, self.num_counted.get(layer, num_counted))
        self.num_counted[layer] = least
        return least
