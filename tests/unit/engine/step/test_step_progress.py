"""[1] The ledger against the numbers themselves, whatever is lost, fenced and taken over in a step.

Pipelines compute, sum and break off in any order (`unit.engine.step.steps`).
"""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from planaria_worker.engine.step_progress import NUM_RECENT_STEPS, StepProgress
from unit.engine.step.steps import SmallJob
from unit.engine.step.summing import MICROBATCHES, NUM_LAYERS, NUM_PIECES

MAX_PIPELINES = 3
CUTS = ([3], [1, 3], [2, 3], [1, 2, 3])


class Steps(RuleBasedStateMachine):
    """Pipelines of any cuts; the coordinator is as foolish as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = SmallJob()

    def share_out(self, microbatches: Sequence[int], data: st.DataObject) -> None:
        for microbatch in microbatches:
            self.world.give(data.draw(st.sampled_from(self.world.pipelines)), microbatch)

    @initialize(cuts=st.lists(st.sampled_from(CUTS), min_size=1, max_size=MAX_PIPELINES))
    def begin(self, cuts: list[list[int]]) -> None:
        for one in cuts:
            self.world.make(one)
        self.world.deal()

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """Between fence and plan, or before the others are so far."""
        self.world.compute(data.draw(st.sampled_from(self.world.pipelines)))

    @precondition(lambda self: len(self.world.pipelines) > 1)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """All that a broken pipeline has computed is dropped."""
        self.world.lose(data.draw(st.sampled_from(self.world.pipelines)))

    @precondition(lambda self: self.world.lost)
    @rule(data=st.data())
    def take_over(self, data: st.DataObject) -> None:
        """Those who are whole keep what they have, and share what was lost with who is new."""
        if len(self.world.pipelines) < MAX_PIPELINES and data.draw(st.booleans()):
            self.world.make(data.draw(st.sampled_from(CUTS)))
        self.share_out(data.draw(st.permutations(self.world.lost)), data)
        self.world.lost.clear()

    @precondition(lambda self: len(self.world.pipelines) > 1)
    @rule(data=st.data(), microbatch=st.sampled_from(MICROBATCHES))
    def give_twice(self, data: st.DataObject, microbatch: int) -> None:
        """A plan that is wrong: the sums must tell."""
        self.world.give(data.draw(st.sampled_from(self.world.pipelines)), microbatch)

    @rule(data=st.data())
    def begin_again(self, data: st.DataObject) -> None:
        """Nobody keeps anything of the step."""
        self.world.restart()
        self.share_out(MICROBATCHES, data)

    @rule(data=st.data(), is_disturbed=st.booleans())
    def attempt(self, data: st.DataObject, is_disturbed: bool) -> None:
        """Everybody sums; some are fenced before a sum starts, or cut off before it is there."""
        limit = data.draw(st.sampled_from([1, 2, NUM_PIECES]))
        numbers = st.just(NUM_PIECES)  # mostly, or nothing would ever become whole
        if is_disturbed:
            numbers |= st.just(NUM_PIECES) | st.integers(0, NUM_PIECES)
        early = st.sampled_from([False] * 7 + [is_disturbed])
        allowed = {e: (data.draw(numbers), data.draw(numbers)) for e in self.world.engines}
        is_over = self.world.attempt(
            allowed, cut_early=lambda _: data.draw(early), max_in_flight=limit
        )
        if is_over:
            self.share_out(MICROBATCHES, data)

    @invariant()
    def what_is_finished_is_in_the_local_sums_once(self) -> None:
        self.world.check_local_sums()


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=80, stateful_step_count=20)


def test_a_sum_with_a_microbatch_twice_is_not_complete() -> None:
    """Two pipelines computed it: a plan that is wrong."""
    world = SmallJob()
    for _ in range(2):
        world.make([NUM_LAYERS])
    world.deal()
    world.give(world.pipelines[1], 0)
    through = dict.fromkeys(world.engines, (NUM_PIECES, NUM_PIECES))
    assert not world.attempt(through, cut_early=lambda _: False, max_in_flight=NUM_PIECES)


@pytest.mark.parametrize("cut_off", [0, 1])
def test_complete_sums_of_one_generation_are_the_input_of_the_next(cut_off: int) -> None:
    """Wherever it was left, and whichever of two owners lacks it."""
    world = SmallJob()
    for _ in range(2):
        world.make([NUM_LAYERS])
    world.deal()
    through = dict.fromkeys(world.engines, (NUM_PIECES, NUM_PIECES))
    broken = {**through, world.engines[cut_off]: (NUM_PIECES, 0)}
    for allowed, is_over in ((broken, False), (through, True)):
        assert is_over == world.attempt(
            allowed, cut_early=lambda _: False, max_in_flight=NUM_PIECES
        )


def test_a_new_attempt_keeps_what_is_computed_and_nothing_of_the_sums() -> None:
    progress = StepProgress(step=3, generation=1, finished=[0, 2])
    progress.launch([4, 5])
    progress.finish([5], 6)
    assert (progress.in_flight, progress.complete) == ({4}, {5: 6})
    progress.begin_attempt(2)
    assert (progress.generation, progress.finished) == (2, [0, 2])
    assert (progress.in_flight, progress.complete) == (set(), {})


def test_a_ledger_knows_what_a_microbatch_takes() -> None:
    """A step that computed nothing, as a follower's, says nothing of it."""
    progress = StepProgress(step=3, generation=1)
    assert progress.usual_microbatch_seconds == 0.0
    progress = progress_after(progress, 1.5)
    assert (progress.step, progress.generation, progress.finished) == (4, 1, [])
    assert progress.usual_microbatch_seconds == 0.5
    assert progress.next_step(5, 2).usual_microbatch_seconds == 0.5


def test_one_slow_step_means_nothing_and_several_do() -> None:
    """Who is given more for it keeps that until the next plan."""
    progress = progress_after(StepProgress(step=0, generation=1), 1.5)
    for slow in range(1, NUM_RECENT_STEPS):
        progress = progress_after(progress, 3.0)
        assert progress.usual_microbatch_seconds == 0.5, slow
    assert progress_after(progress, 3.0).usual_microbatch_seconds == 1.0


def progress_after(progress: StepProgress, compute_seconds: float) -> StepProgress:
    """Return the account after a step of three microbatches that took so long."""
    progress.finished.extend([0, 2, 5])
    progress.compute_seconds = compute_seconds
    return progress.next_step(progress.step + 1, progress.generation)
