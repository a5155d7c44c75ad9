"""Following over TCP: a layer as it stands, then every step, however the two fall together."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
import torch
from torch import Tensor

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.layers.copy import CommitFeed, CommittedSum, LayerFollower, wire
from planaria_worker.engine.layers.copy.feed import Subscription
from unit.worker_comm.layers import SECRET, MemoryLayers, serve

VERSION = 7


def record(step: int, next_generation: int = 0) -> CommitRecord:
    return CommitRecord(
        step=step,
        generation=2,
        gradient_norm=0.1 + 0.2,
        loss=2.5,
        num_tokens=64,
        next_generation=next_generation,
    )


def total(step: int) -> Tensor:
    return torch.full((5,), step, dtype=torch.int64)


@dataclass
class Recorder:
    """Writes down what arrives."""

    taken: list[tuple[str, int, int]] = field(default_factory=list)
    tensors: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    records: list[CommitRecord | None] = field(default_factory=list)
    failures: list[PlanariaError] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take_layer(
        self, layer: int, version: int, tensors: Mapping[str, Tensor], record: CommitRecord | None
    ) -> None:
        self.tensors[layer] = tensors
        self._note(("layer", layer, version), record)

    def take_sum(self, committed: CommittedSum) -> None:
        assert committed.total is not None
        assert torch.equal(committed.total, total(committed.record.step))
        self._note(("sum", committed.layer, committed.record.step), committed.record)

    def become_current(self, layers: Sequence[int]) -> None:
        self._note(("current", len(layers), 0))

    def fail(self, error: PlanariaError) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def wait_for(self, *expected: tuple[str, int, int]) -> None:
        """Waits until exactly this has arrived, in this order."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.taken) >= len(expected), 20)
        assert self.taken == list(expected)

    def wait_for_failure(self) -> PlanariaError:
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self.failures), 20)
        return self.failures[0]

    def _note(self, what: tuple[str, int, int], record: CommitRecord | None = None) -> None:
        with self.changed:
            self.taken.append(what)
            self.records.append(record)
            self.changed.notify_all()


@pytest.fixture
def source() -> MemoryLayers:
    return MemoryLayers(VERSION, {x: {"w": torch.arange(40.0) + x} for x in range(3)})


@contextlib.contextmanager
def following(
    source: MemoryLayers,
    feed: CommitFeed,
    layers: Sequence[int] = (0,),
    before: Sequence[str] = (),
) -> Iterator[Recorder]:
    """A follower of a server; `before` are addresses that it tries first."""
    recorder = Recorder()
    follower = LayerFollower(recorder, job_secret=SECRET, failpoints=Failpoints())
    with contextlib.closing(serve(source, feed=feed)) as server:
        follower.start({layer: [*before, server.address] for layer in layers})
        try:
            yield recorder
        finally:
            follower.interrupt()


def once(act: Callable[[], None]) -> Callable[[], None]:
    """Acts when it is called first."""
    acts = [act]

    def call() -> None:
        if acts:
            acts.pop()()

    return call


def test_a_layer_is_followed_by_every_step_committed_since(source: MemoryLayers) -> None:
    feed = CommitFeed()
    with following(source, feed) as follower:
        follower.wait_for(("layer", 0, VERSION), ("current", 1, 0))
        assert torch.equal(follower.tensors[0]["w"], source.layers[0]["w"])
        feed.publish(0, record(VERSION), total(VERSION))
        feed.publish(1, record(VERSION), total(VERSION))  # nobody follows it
        feed.publish(0, record(VERSION + 1, next_generation=3), total(VERSION + 1))
        follower.wait_for(
            ("layer", 0, VERSION),
            ("current", 1, 0),
            ("sum", 0, VERSION),
            ("sum", 0, VERSION + 1),
        )
        assert follower.records[2:] == [record(VERSION), record(VERSION + 1, next_generation=3)]


def test_a_step_committed_while_a_layer_is_read_is_in_it_or_sent_after_it(
    source: MemoryLayers,
) -> None:
    """The first look meets a commit: what was read is of neither step, and is read again."""
    feed = CommitFeed()
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:  # behind the reading
            source.current = VERSION + 1
            source.layers[0]["w"].add_(1000)
            feed.publish(0, record(VERSION), total(VERSION))

    source.on_version = look
    with following(source, feed) as follower:
        follower.wait_for(("layer", 0, VERSION + 1), ("sum", 0, VERSION), ("current", 1, 0))
        assert torch.equal(follower.tensors[0]["w"], torch.arange(40.0) + 1000)
        assert follower.records[0] == record(VERSION)  # the commit that made it


def test_a_layer_that_is_being_changed_is_waited_for(source: MemoryLayers) -> None:
    source.current = None
    looks = iter([None, None])  # the first two see it half-changed
    source.on_version = lambda: setattr(source, "current", next(looks, VERSION))
    with following(source, CommitFeed()) as follower:
        follower.wait_for(("layer", 0, VERSION), ("current", 1, 0))


def test_a_follower_that_falls_behind_is_sent_the_layer_again(source: MemoryLayers) -> None:
    feed = CommitFeed(num_kept=1, kept_bytes=0)

    def commit_twice() -> None:
        for step in (VERSION, VERSION + 1):
            feed.publish(0, record(step), total(step))
        source.current = VERSION + 2

    source.on_version = once(commit_twice)
    with following(source, feed) as follower:
        again = ("layer", 0, VERSION + 2)
        follower.wait_for(again, again, ("current", 1, 0))
        feed.publish(0, record(VERSION + 2), total(VERSION + 2))
        follower.wait_for(again, again, ("current", 1, 0), ("sum", 0, VERSION + 2))


def test_other_layers_do_not_wait_for_a_large_one(
    source: MemoryLayers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of layer 0 is sent between two chunks of layer 1."""
    monkeypatch.setattr(wire, "CHUNK_BYTES", 64)
    feed = CommitFeed()
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:  # two looks for each layer
            feed.publish(0, record(VERSION), total(VERSION))

    source.on_version = look
    with following(source, feed, layers=[0, 1]) as follower:
        follower.wait_for(
            ("layer", 0, VERSION), ("sum", 0, VERSION), ("layer", 1, VERSION), ("current", 2, 0)
        )
        assert torch.equal(follower.tensors[1]["w"], source.layers[1]["w"])


def test_the_next_source_is_tried(source: MemoryLayers) -> None:
    feed = CommitFeed()
    with (
        contextlib.closing(serve(MemoryLayers(VERSION, {9: {}}))) as other,
        following(source, feed, before=["127.0.0.1:1", other.address]) as follower,
    ):
        follower.wait_for(("layer", 0, VERSION), ("current", 1, 0))


def test_without_a_source_it_says_which_layer_has_none(source: MemoryLayers) -> None:
    with following(source, CommitFeed(), layers=[5]) as follower:
        failure = follower.wait_for_failure()
        assert failure.reason is ErrorReason.COPY_FAILED
        assert failure.metadata["layer"] == "5"
        assert "does not hold layer 5" in failure.message


def test_a_source_that_ends_is_a_failure_and_an_interruption_is_none(source: MemoryLayers) -> None:
    recorder = Recorder()
    follower = LayerFollower(recorder, job_secret=SECRET, failpoints=Failpoints())
    with contextlib.closing(serve(source)) as server:
        follower.start({0: [server.address]})
        recorder.wait_for(("layer", 0, VERSION), ("current", 1, 0))
    assert recorder.wait_for_failure().reason is ErrorReason.COPY_FAILED
    with following(source, CommitFeed()) as other:
        other.wait_for(("layer", 0, VERSION), ("current", 1, 0))
    assert not other.failures


# --- the feed itself


def test_without_a_follower_a_commit_costs_nothing() -> None:
    """Not even a copy of the sum: this one could not be copied."""
    CommitFeed().publish(0, record(0), cast(Tensor, object()))


def test_a_sum_is_the_one_of_its_step_whatever_becomes_of_the_buffer() -> None:
    feed = CommitFeed()
    with feed.subscribe() as subscription:
        subscription.follow(0)
        buffer = total(1)
        feed.publish(0, record(1), buffer)
        buffer.zero_()
        committed = subscription.next()
        assert committed is not None
        assert committed.total is not None
        assert torch.equal(committed.total, total(1))


def test_only_the_layer_that_falls_behind_is_dropped() -> None:
    feed = CommitFeed(num_kept=2, kept_bytes=0)
    with feed.subscribe() as subscription:
        for layer in (0, 1):
            subscription.follow(layer)
        feed.publish(1, record(0), total(0))
        for step in range(3):
            feed.publish(0, record(step), total(step))
        assert subscription.take_dropped() == [0]
        assert subscription.take_dropped() == []
        committed = subscription.next()
        assert committed is not None
        assert committed.layer == 1
        assert subscription.next() is None


def test_a_sum_that_there_is_no_memory_for_does_not_end_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The layer is sent again instead: an update that stopped halfway would lose it."""

    def clone(_: Tensor) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    feed = CommitFeed()
    with feed.subscribe() as subscription:
        subscription.follow(0)
        feed.publish(0, record(0), total(0))
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "clone", clone)
            feed.publish(0, record(1), total(1))
        assert subscription.take_dropped() == [0]
        assert subscription.next() is None


def test_a_dropped_layer_can_be_followed_again_at_once() -> None:
    """By the stream, while the commit that was too much for it is still being published. Guard: a
    layer is given up in one piece."""
    feed = CommitFeed(num_kept=1, kept_bytes=0)
    with feed.subscribe() as subscription:

        def follow_again() -> None:
            for layer in subscription.take_dropped():
                subscription.follow(layer)

        stream = threading.Thread(target=follow_again)
        remove = feed.remove

        def remove_late(layer: int, follower: Subscription) -> None:
            if not stream.ident:
                stream.start()
                stream.join(0.2)
            remove(layer, follower)

        feed.remove = remove_late  # type: ignore[method-assign]
        subscription.follow(0)
        for step in range(2):
            feed.publish(0, record(step), total(step))
        stream.join()
        feed.publish(0, record(2), total(2))
        committed = subscription.next()
    assert committed is not None
    assert committed.record.step == 2


def test_small_sums_are_kept_while_they_are_small_together() -> None:
    feed = CommitFeed(num_kept=1, kept_bytes=4 * total(0).nbytes)
    with feed.subscribe() as subscription:
        subscription.follow(0)
        for step in range(4):
            feed.publish(0, record(step), total(step))
        assert subscription.take_dropped() == []
        feed.publish(0, record(4), total(4))
        assert subscription.take_dropped() == [0]


def test_a_follower_that_left_is_sent_nothing() -> None:
    feed = CommitFeed()
    with feed.subscribe() as subscription:
        subscription.follow(0)
    feed.publish(0, record(0), cast(Tensor, None))
