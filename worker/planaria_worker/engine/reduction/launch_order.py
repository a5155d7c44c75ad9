"""Which all-reduce may start now: a decision that all ranks come to alike, apart from the doing.

A bucket starts when the local sums of its layers are complete, which the last backward pass brings
about from the highest layer down, and never before the buckets that come ahead of it in the one
order of all ranks (protocol/step.md): ranks that waited for buckets in different orders would wait
for each other for ever, and two buckets of one group that changed places would be added to each
other.

What the last layer completes waits until the pass is over: filling a bucket takes time, and the
stage before waits for the gradient that comes of the pass. For a tied layer it has to. That is the
first of the model, so it comes last in the order: the stage with its last use has its sum at once,
but the one with its first only after a gradient from that very pass, and a transport that waits for
all owners would wait for ever.
"""

from collections.abc import Sequence


class LaunchOrder:
    """The buckets of one attempt, in order."""

    def __init__(self, buckets: Sequence[tuple[int, ...]], max_in_flight: int) -> None:
        """Nothing is complete.

        Args:
            buckets: the layers of each, in the order of all ranks.
            max_in_flight: how many may be under way at once; at least 1.
        """
        self._buckets = tuple(buckets)
        self._max_in_flight = max_in_flight
        self._incomplete = {layer for bucket in buckets for layer in bucket}
        self._is_pass_over = False
        self._next = 0

    @property
    def staged_change(self) -> int | None:
        """The bucket that starts next, now or later; None: all have."""
        return self._next if self._next < len(self._buckets) else None

    def complete(self, layer: int) -> None:
        """The local sum of a layer holds all that this rank has to add; the pass goes on."""
        self._incomplete.discard(layer)

    def end_pass(self) -> None:
        """All local sums are complete, and the pipeline's neighbours have all they wait for."""
        self._is_pass_over = True

    def take(self, num_in_flight: int) -> int | None:
        """The bucket to start now, once each; None: the next has to wait, or too many run."""
        place = self.staged_change
        if place is None or num_in_flight >= self._max_in_flight:
            return None
        if not self._is_pass_over and not self._may_start_early(self._buckets[place]):
            return None
        self._next += 1
        return place

    def _may_start_early(self, bucket: tuple[int, ...]) -> bool:
        return bool(self._incomplete) and self._incomplete.isdisjoint(bucket)
