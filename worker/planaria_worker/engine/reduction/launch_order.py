"""Which all-reduce may start now: a decision that all ranks make alike; pure.

A bucket starts when the local sums of its layers are complete: the last backward pass completes
them from the highest layer down. It never starts before the earlier buckets in the one order of all
ranks (protocol/step.md): ranks that waited for buckets in different orders would deadlock, and two
buckets of one group that changed places would be added to each other.

The buckets that the last layer of the pass completes wait until the pass is over: filling a bucket
takes time, and the stage before waits for the gradient that comes out of the pass. A tied layer has
to wait. It is the first layer of the model, so it comes last in the order. The stage with its last
use has its sum at once, but the one with its first use only after a gradient of that very pass, and
a transport that waits for all owners would deadlock.
"""

from collections.abc import Sequence


class LaunchOrder:
    """The buckets of one attempt, in order."""

    def __init__(self, buckets: Sequence[tuple[int, ...]], max_in_flight: int) -> None:
        """Begin with nothing complete.

        Args:
            buckets: the layers of each, in the one order of all ranks.
            max_in_flight: how many may be under way at once; at least 1.
        """
        self._buckets = tuple(buckets)
        self._max_in_flight = max_in_flight
        self._incomplete = {layer for bucket in buckets for layer in bucket}
        self._is_pass_over = False
        self._next = 0

    @property
    def next_bucket(self) -> int | None:
        """The bucket that starts next, now or later; None: all have started."""
        return self._next if self._next < len(self._buckets) else None

    def complete(self, layer: int) -> None:
        """Note that the local sum of a layer is complete; the pass goes on."""
        self._incomplete.discard(layer)

    def end_pass(self) -> None:
        """Note that all local sums are complete, and the neighbours have all they wait for."""
        self._is_pass_over = True

    def take(self, num_in_flight: int) -> int | None:
        """Return the bucket to start now, each once; None: none may start."""
        bucket = self.next_bucket
        if bucket is None or num_in_flight >= self._max_in_flight:
            return None
        if not self._is_pass_over and not self._may_start_early(self._buckets[bucket]):
            return None
        self._next += 1
        return bucket

    def _may_start_early(self, bucket: tuple[int, ...]) -> bool:
        return bool(self._incomplete) and self._incomplete.isdisjoint(bucket)
