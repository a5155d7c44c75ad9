"""Taking the next place is one with the fence: whoever comes first wins."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from planaria_common.errors import PlanariaError
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import Fence, FencedError
from planaria_worker.engine.groups.current_groups import CurrentGroups
from planaria_worker.engine.recovery.current_training import CurrentTraining
from planaria_worker.engine.recovery.handover import Handover
from planaria_worker.engine.recovery.retained_work import RetainedWork
from planaria_worker.engine.telemetry import Trace, Vitals

GENERATION, NEXT, STEP, NUM_STEPS = 3, 4, 6, 9
RECORD = CommitRecord(
    step=STEP,
    generation=GENERATION,
    gradient_norm=1.0,
    loss=1.0,
    num_tokens=1,
    next_generation=NEXT,
)
OLD = RetainedWork(
    generation=GENERATION, step=STEP, step_microbatches=(0,), regular_microbatches=(0,)
)
NEW = RetainedWork(
    generation=NEXT, step=STEP + 1, step_microbatches=(1,), regular_microbatches=(1,)
)


class Next:
    """A staged place, ready."""

    def __init__(self, *, keeps_step: bool) -> None:
        self.generation = NEXT
        self.is_ready, self.is_taken, self.is_voting = True, False, True
        self.communicators: Any = SimpleNamespace(groups={})
        self.view = SimpleNamespace(keeps_step=keeps_step, peers={})

    def mark_taken(self) -> None:
        self.is_taken = True

    def take(self, version: int) -> Any:
        assert version == STEP + 1
        self.mark_taken()
        return context(NEXT)

    def wait_for_layers(self, version: int) -> None:
        assert version == STEP + 1

    def retained_work(self, committed_steps: int) -> RetainedWork:
        assert committed_steps == STEP + 1
        return NEW


def context(generation: int) -> Any:
    return SimpleNamespace(generation=generation, pipeline_groups=(), trace=lambda: None)


class HandoverHarness:
    """A handover with everything around it."""

    def __init__(self) -> None:
        self.fence = Fence(GENERATION)
        self.fence.see(NEXT)
        vitals = Vitals(on_change=lambda: None)
        vitals.committed_steps = STEP
        self.current_training = CurrentTraining(vitals=vitals, trace=Trace(), num_commits=NUM_STEPS)
        self.current_training.context, self.current_training.retained_work = (
            context(GENERATION),
            OLD,
        )
        resources = SimpleNamespace(fence=self.fence)
        self.joined: list[CommitRecord] = []
        self.are_built: list[Callable[[], bool]] = []
        self.handover = Handover(
            builder=SimpleNamespace(resources=resources),  # type: ignore[arg-type]
            job_secret="",
            current_training=self.current_training,
            current_groups=CurrentGroups(),
            failure_detector=SimpleNamespace(  # type: ignore[arg-type]
                watch=lambda peers: None, reconnect_unless=self.are_built.append
            ),
            on_join=lambda _, record: self.joined.append(record),
        )

    def stage(self, *, keeps_step: bool = True) -> Any:
        staged: Any = Next(keeps_step=keeps_step)
        self.handover._next = staged
        return staged


@pytest.fixture
def world() -> HandoverHarness:
    return HandoverHarness()


@pytest.fixture(autouse=True)
def _no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewing a place is tested with real ones."""
    monkeypatch.setattr(
        "planaria_worker.engine.recovery.handover.renew_context", lambda *_, **__: None
    )


def test_an_unchanged_pipeline_replaces_its_retained_work(world: HandoverHarness) -> None:
    staged = world.stage()
    assert world.handover.renew(world.current_training.context, staged, RECORD)  # type: ignore[arg-type]
    assert world.current_training.retained_work == NEW
    assert (world.current_training.last_commit, world.current_training.committed_steps) == (
        RECORD,
        STEP + 1,
    )


def test_invariant_4_an_earlier_fence_prevents_the_switch(
    world: HandoverHarness,
) -> None:
    """Also when it comes after the place was looked up."""
    kept, changed = world.stage(), world.stage(keeps_step=False)
    world.fence.see(NEXT + 1)
    assert not world.handover.renew(world.current_training.context, kept, RECORD)  # type: ignore[arg-type]
    with pytest.raises(FencedError):
        world.handover.replace_context(changed, RECORD)
    assert not kept.is_taken
    assert not changed.is_taken
    assert world.current_training.retained_work == OLD


def test_invariant_4_a_fence_while_groups_are_built_prevents_the_switch(
    world: HandoverHarness,
) -> None:
    """A report that was given at the fence knows nothing of its promise."""
    world.current_training.context = world.current_training.retained_work = None
    world.fence.fence(NEXT + 1)
    with pytest.raises(FencedError):
        world.current_training.begin(context(NEXT), NEW, world.fence)
    assert world.current_training.context is None
    assert world.current_training.retained_work is None


def test_a_halted_engine_retains_no_work(world: HandoverHarness) -> None:
    staged = world.stage()
    world.current_training.retained_work = None
    assert not world.handover.renew(world.current_training.context, staged, RECORD)  # type: ignore[arg-type]
    assert world.current_training.retained_work is None


def test_an_engine_switches_together_with_its_retained_work(world: HandoverHarness) -> None:
    staged = world.stage(keeps_step=False)
    world.current_training.context = world.current_training.retained_work = None
    taken = world.handover.replace_context(staged, RECORD)
    assert world.current_training.context is taken
    assert world.current_training.retained_work == NEW
    assert (world.current_training.last_commit, world.current_training.committed_steps) == (
        RECORD,
        STEP + 1,
    )


@pytest.mark.parametrize(
    ("change", "is_there"),
    [
        ({}, True),
        ({"next_generation": NEXT + 1}, False),
        ({"next_generation": 0}, False),
        ({"step": NUM_STEPS - 1}, False),
    ],
    ids=["its own", "another generation's", "nobody's", "the last step"],
)
def test_a_staged_change_belongs_to_one_generation_and_ends_with_the_last_step(
    world: HandoverHarness, change: dict[str, int], is_there: bool
) -> None:
    staged = world.stage()
    assert (world.handover.change_at(replace(RECORD, **change)) is staged) == is_there


def test_an_engine_switches_once(world: HandoverHarness) -> None:
    staged = world.stage()
    staged.mark_taken()
    assert world.handover.change_at(RECORD) is None


def test_only_engines_that_do_not_vote_join_by_what_they_follow(world: HandoverHarness) -> None:
    staged = world.stage(keeps_step=False)
    world.handover._followed(staged, RECORD)
    assert world.joined == []
    staged.is_voting = False
    world.handover._followed(staged, RECORD)
    assert world.joined == [RECORD]


def test_peers_are_connected_to_again_only_for_groups_that_are_not_built_yet(
    world: HandoverHarness,
) -> None:
    groups: Any = SimpleNamespace(is_built=False)
    view: Any = SimpleNamespace(peers={})
    world.handover.watch(view)
    assert world.are_built == []
    world.handover.watch(view, groups)
    (are_built,) = world.are_built
    assert not are_built()
    groups.is_built = True
    assert are_built()


def test_a_commit_ends_only_older_generations() -> None:
    """A joiner may hold the mark of the generation that it trains in already."""
    assert RECORD.ends_generation
    assert not replace(RECORD, generation=NEXT).ends_generation


def test_invariant_4_no_context_is_built_while_the_engine_may_still_commit(
    world: HandoverHarness,
) -> None:
    trains: Any = context(GENERATION)
    trains.halt = threading.Event()
    world.current_training.context = trains
    with pytest.raises(PlanariaError, match="trains in generation 3, and was not fenced"):
        world.current_training.require_fenced(world.fence)
    trains.halt.set()
    world.current_training.require_fenced(world.fence)
    trains.halt.clear()
    world.fence.fence(NEXT)
    world.current_training.require_fenced(world.fence)
