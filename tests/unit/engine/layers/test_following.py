"""Layers that follow are bitwise those that are followed, and are nobody's until they are taken."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.job import Job, open_job
from planaria_worker.engine.layers.copy import CommitFeed, CommittedSum
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.recovery.followed_layers import FollowedLayers
from planaria_worker.engine.step.training_step import apply_step
from planaria_worker.models.state import SLOTS, initial_state
from support.engines.training_jobs import training_job

LAYERS = (1, 2)


class Source:
    """An engine that commits, and what it tells a follower of it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.store = LayerStore()
        states = {layer: initial_state(job.model, layer, seed=1) for layer in LAYERS}
        self.store.install(states, 0)
        self.feed = CommitFeed()

    def commit(self, step: int, next_generation: int = 0) -> CommitRecord:
        """Applies a step of random sums."""
        record = CommitRecord(
            step=step,
            generation=1,
            gradient_norm=3.5,
            loss=1.0,
            num_tokens=288,
            next_generation=next_generation,
        )
        sums = GradientSums([self.job.layouts[layer] for layer in LAYERS], self.job.accumulation)
        for layer, total in sums.sums.items():
            noise = torch.randn(total.shape, generator=torch.Generator().manual_seed(step + layer))
            total.copy_(noise * 2**40 if total.dtype == torch.int64 else noise)
        apply_step(self.job, self.store, self.feed, sums.sums, record)
        return record

    def layer(self, layer: int) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.store.tensors(layer).items()}


@pytest.fixture(params=[True, False], ids=["reproducible", "float32"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    files = training_job(tmp_path, num_blocks=2, reproducible=request.param).files
    return open_job("job", json.dumps(files.spec), files.data_path, torch.device("cpu"))


@pytest.fixture
def source(job: Job) -> Source:
    return Source(job)


@pytest.fixture
def commits() -> list[CommitRecord]:
    return []


@pytest.fixture
def followed(job: Job, commits: list[CommitRecord]) -> FollowedLayers:
    followed = FollowedLayers(job, LAYERS, commits.append)
    followed.allocate()
    return followed


def send(source: Source, followed: FollowedLayers, layers: Sequence[int] = LAYERS) -> None:
    for layer in layers:
        version = source.store.version(layer)
        assert version is not None
        followed.take_layer(layer, version, source.layer(layer), None)


def equal(source: Source, followed: FollowedLayers, layer: int) -> bool:
    return all(
        torch.equal(source.store.states[layer].buffer(slot), followed.states[layer].buffer(slot))
        for slot in SLOTS
    )


def test_a_followed_layer_is_bitwise_its_source(
    source: Source, followed: FollowedLayers, commits: list[CommitRecord]
) -> None:
    source.commit(0)
    send(source, followed)
    with source.feed.subscribe() as subscription:
        for layer in LAYERS:
            subscription.follow(layer)
        records = [source.commit(1), source.commit(2, next_generation=4)]
        while committed := subscription.next():
            followed.take_sum(committed)
    assert all(equal(source, followed, layer) for layer in LAYERS)
    assert commits == records  # each once all layers had it
    followed.wait_for(3, timeout_seconds=0.0)


def test_a_step_that_a_layer_was_sent_with_is_not_applied_again(
    source: Source, followed: FollowedLayers, commits: list[CommitRecord]
) -> None:
    """But it says which commit made the layer."""
    with source.feed.subscribe() as subscription:
        for layer in LAYERS:
            subscription.follow(layer)
        record = source.commit(0, next_generation=4)
        send(source, followed)
        assert commits == []
        while committed := subscription.next():
            followed.take_sum(committed)
    assert all(equal(source, followed, layer) for layer in LAYERS)
    assert commits == [record]


def test_a_step_is_never_left_out(source: Source, followed: FollowedLayers) -> None:
    send(source, followed)
    total = torch.zeros(1)
    gap = CommittedSum(layer=1, record=source.commit(1), total=total)
    with pytest.raises(ValueError, match="step 1 of layer 1 came at version 0"):
        followed.take_sum(gap)


def test_a_restarted_layer_stays_the_same_object(source: Source, followed: FollowedLayers) -> None:
    """A stage that was built on it need not be built again."""
    before = followed.states[1].parameters
    send(source, followed)
    source.commit(0)
    send(source, followed)
    assert followed.states[1].parameters is before
    assert equal(source, followed, 1)


def test_layers_that_do_not_come_are_named(source: Source, followed: FollowedLayers) -> None:
    send(source, followed, layers=[1])
    with pytest.raises(PlanariaError) as failure:
        followed.wait_for(0, timeout_seconds=0.0)
    assert failure.value.reason is ErrorReason.UNAVAILABLE
    assert failure.value.metadata["layers"] == "2"


def test_layers_that_are_taken_do_not_change_any_more(
    source: Source, followed: FollowedLayers
) -> None:
    send(source, followed)
    followed.wait_for(0, timeout_seconds=0.0)
    with pytest.raises(ValueError, match="taken"):
        send(source, followed)


def test_a_waiting_follower_learns_that_its_source_is_gone(
    source: Source, followed: FollowedLayers
) -> None:
    followed.become_current([1])
    followed.fail(KeyError("gone"))
    with pytest.raises(KeyError):
        followed.wait_until_current()
    with pytest.raises(KeyError):
        followed.wait_for(0, timeout_seconds=60.0)
    with pytest.raises(KeyError):
        send(source, followed)


def test_without_layers_there_is_nothing_to_wait_for(job: Job) -> None:
    nothing = FollowedLayers(job, (), lambda _: None)
    nothing.wait_until_current()
    nothing.wait_for(5, timeout_seconds=0.0)


def test_a_step_is_published_when_the_layer_has_it(source: Source) -> None:
    """Otherwise whoever begins to follow in between would never hear of it."""
    versions = []

    class Feed(CommitFeed):
        def publish(self, layer: int, record: CommitRecord, total: Tensor | None) -> None:
            versions.append(source.store.version(layer))
            assert total is not None
            assert total.any()

    source.feed = Feed()
    source.commit(0)
    assert versions == [1, 1]
