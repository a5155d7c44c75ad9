"""Gives followers of a layer the gradient sums of committed steps, without blocking training.

feed.publish(3, record, total)              # training thread: layer 3 has the step
with feed.subscribe() as subscription:      # thread of a follower's connection
    subscription.follow(3)                  # before layer 3 is read: no step is missed
    subscription.next(timeout_seconds=1.0)
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from torch import Tensor

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.memory import is_out_of_memory

NUM_KEPT = 3
"""Sums of a layer that are kept for a slow follower, however large they are."""
KEPT_BYTES = 64 << 20
"""More are kept while all sums for a follower together are no larger than this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommittedSum:
    """The complete gradient sum of a layer in a committed step."""

    layer: int
    record: CommitRecord
    total: Tensor | None
    """Flat; a copy that never changes. None: the step was skipped."""

    @property
    def num_bytes(self) -> int:
        """Return the memory that it takes."""
        return 0 if self.total is None else self.total.nbytes


class CommitFeed:
    """One engine's committed sums, layer by layer."""

    def __init__(self, *, num_kept: int = NUM_KEPT, kept_bytes: int = KEPT_BYTES) -> None:
        self._num_kept = num_kept
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._followers: dict[int, tuple[Subscription, ...]] = {}
        self.last_record: CommitRecord | None = None

    def publish(self, layer: int, record: CommitRecord, total: Tensor | None) -> None:
        """Give a sum to the followers of a layer; without followers, it costs nothing.

        If there is no memory for it, they are sent the layer again: an update is never torn.

        Call it after the update: a follower that subscribes too late for this sum finds it in the
        layer.
        """
        self.last_record = record
        if layer not in self._followers:
            return
        try:
            kept = None if total is None else total.clone()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            for follower in self._followers.get(layer, ()):
                follower.drop(layer)
            return
        committed = CommittedSum(layer=layer, record=record, total=kept)
        for follower in self._followers.get(layer, ()):
            follower.put(committed)

    def subscribe(self) -> "Subscription":
        """Return a subscription to no layer yet."""
        return Subscription(self, self._num_kept, self._kept_bytes)

    def add(self, layer: int, follower: "Subscription") -> None:
        """Give the follower the sums of a layer from now on."""
        with self._lock:
            self._followers[layer] = (*self._followers.get(layer, ()), follower)

    def remove(self, layer: int, follower: "Subscription") -> None:
        """Give the follower no more sums of a layer."""
        with self._lock:
            rest = tuple(f for f in self._followers.get(layer, ()) if f is not follower)
            if rest:
                self._followers[layer] = rest
            else:
                self._followers.pop(layer, None)


class Subscription:
    """The sums that one follower was not sent yet."""

    def __init__(self, feed: CommitFeed, num_kept: int, kept_bytes: int) -> None:
        self._feed = feed
        self._num_kept = num_kept
        self._kept_bytes = kept_bytes
        self._changed = threading.Condition()
        self._waiting: deque[CommittedSum] = deque()
        self._followed: set[int] = set()
        self._overrun: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            layers, self._followed = self._followed, set()
            self._waiting.clear()
        for layer in layers:
            self._feed.remove(layer, self)

    def follow(self, layer: int) -> None:
        """Receive every step of the layer from now on."""
        with self._changed:
            self._followed.add(layer)
        self._feed.add(layer, self)

    def put(self, committed: CommittedSum) -> None:
        """Add a sum, or drop its layer if too many wait."""
        layer = committed.layer
        with self._changed:
            if layer not in self._followed:
                return
            if self._has_room(committed):
                self._waiting.append(committed)
                self._changed.notify_all()
            else:
                self._drop(layer)

    def drop(self, layer: int) -> None:
        """Have the layer sent again, since a sum of it is missing."""
        with self._changed:
            if layer in self._followed:
                self._drop(layer)

    def next(
        self, *, leaving: int | None = None, timeout_seconds: float = 0.0
    ) -> CommittedSum | None:
        """Return the oldest sum, or None; wait for a sum or for a dropped layer.

        Args:
            leaving: a layer whose sums stay in the queue.
            timeout_seconds: how long to wait.
        """
        with self._changed:
            if not self._waiting and not self._overrun and timeout_seconds:
                self._changed.wait(timeout_seconds)
            for place, committed in enumerate(self._waiting):
                if committed.layer != leaving:
                    del self._waiting[place]
                    return committed
            return None

    def take_dropped(self) -> Sequence[int]:
        """Layers that were dropped since the last call: send them again."""
        with self._changed:
            layers, self._overrun = sorted(self._overrun), set()
            return layers

    def _drop(self, layer: int) -> None:
        self._waiting = deque(c for c in self._waiting if c.layer != layer)
        self._followed.discard(layer)
        self._overrun.add(layer)
        self._feed.remove(layer, self)  # before the stream can follow it again
        self._changed.notify_all()

    def _has_room(self, committed: CommittedSum) -> bool:
        num_waiting = sum(other.layer == committed.layer for other in self._waiting)
        num_bytes = sum(other.num_bytes for other in self._waiting)
        return num_waiting < self._num_kept or num_bytes + committed.num_bytes <= self._kept_bytes
