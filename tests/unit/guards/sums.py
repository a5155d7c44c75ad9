"""Remove the guards of gradient sums, and of the rounds of a step."""

import queue
from collections.abc import Iterable
from typing import Any

import pytest
from torch import Tensor

from planaria_worker.engine.numerics.accumulate import GradientSums, Piece
from planaria_worker.engine.reduction import gradient_reduction
from planaria_worker.engine.reduction.complete_sum_query import CompleteSumQuery
from planaria_worker.engine.reduction.launch_order import LaunchOrder
from planaria_worker.engine.step.pipeline_stage import PipelineStage, Round
from planaria_worker.engine.step.stage_links import StageLinks
from planaria_worker.engine.step.training_step import RefusedStepError
from planaria_worker.engine.step_progress import StepProgress
from unit.engine.reduction import test_gradients, test_launch_order
from unit.engine.step import test_early_passes, test_step_progress
from unit.guards.guard import guard, swap
from unit.worker_math import test_numerics


@guard(
    "complete sums are known, and added once",
    test_step_progress.test_complete_sums_of_one_generation_are_the_input_of_the_next,
)
def forget_complete_sums(patch: pytest.MonkeyPatch) -> None:
    """What comes out of an all-reduce is taken for a local sum in the next attempt."""

    def put_complete(self: GradientSums, piece: Piece, values: Tensor) -> bool:
        self.part(piece).copy_(values)
        return False

    swap(patch, GradientSums.put_complete, put_complete)


@guard(
    "a complete sum takes in nothing more", test_numerics.test_a_complete_sum_accepts_nothing_more
)
def add_to_complete_sums(patch: pytest.MonkeyPatch) -> None:
    hook = GradientSums._hook

    def hook_without_knowledge(self: GradientSums, *what: Any) -> Any:
        known, self.num_complete = self.num_complete, {}
        try:
            return hook(self, *what)
        finally:
            self.num_complete = known

    swap(patch, hook, hook_without_knowledge)


@guard(
    "only a sum that holds every microbatch once is complete",
    test_step_progress.test_a_sum_with_a_microbatch_twice_is_not_complete,
)
def take_any_sum_for_complete(patch: pytest.MonkeyPatch) -> None:
    def count_all(self: gradient_reduction._Attempt, layer: int, num_counted: int) -> int:
        return len(self.counts)

    swap(patch, gradient_reduction._Attempt.count, count_all)


@guard(
    "no sum starts before its owners have said which sums they have complete",
    test_step_progress.test_complete_sums_of_one_generation_are_the_input_of_the_next,
)
def hear_nobody_before_sums_start(patch: pytest.MonkeyPatch) -> None:
    swap(patch, CompleteSumQuery.is_unheard, lambda self, group: False)


@guard(
    "a complete sum is saved before its buffer is used again",
    test_gradients.test_layers_that_travel_apart_have_the_same_sums,
    test_step_progress.test_complete_sums_of_one_generation_are_the_input_of_the_next,
    raises=(RefusedStepError,),
)
def drop_sums_in_receive_buffers(patch: pytest.MonkeyPatch) -> None:
    def drop(self: GradientSums, layers: Iterable[int]) -> None:
        for layer in self._in_receive_buffer.keys() & set(layers):
            del self._in_receive_buffer[layer]

    swap(patch, GradientSums.copy_to_own_buffers, drop)


@guard(
    "a step begins with nothing of the one before",
    test_numerics.test_a_gradient_nothing_was_added_to_is_zero,
    test_gradients.test_a_follower_adds_nothing_of_the_step_before,
)
def keep_gradients_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    swap(patch, GradientSums.settle, lambda self, layers: None)


@guard(
    "a sum with a gradient out of range is not complete",
    test_gradients.test_a_sum_with_a_gradient_out_of_range_is_not_complete,
)
def overlook_gradients_out_of_range(patch: pytest.MonkeyPatch) -> None:
    swap(patch, GradientSums.in_range, lambda self, layer: True)


@guard(
    "the sums that the last layer completes wait for the end of the pass",
    test_launch_order.test_all_ranks_start_in_one_order_without_deadlock,
    test_launch_order.test_sums_completed_by_the_last_layer_wait_for_the_end_of_the_pass,
    is_slow=True,
)
def start_sums_within_the_pass(patch: pytest.MonkeyPatch) -> None:
    def may_start(self: LaunchOrder, bucket: tuple[int, ...]) -> bool:
        return self._incomplete.isdisjoint(bucket)

    swap(patch, LaunchOrder._may_start_early, may_start)


@guard(
    "an attempt believes nothing of the sums of an older one",
    test_step_progress.test_a_new_attempt_keeps_what_is_computed_and_nothing_of_the_sums,
)
def believe_sums_of_older_attempts(patch: pytest.MonkeyPatch) -> None:
    def begin_attempt(self: StepProgress, generation: int) -> None:
        self.generation = generation

    swap(patch, StepProgress.begin_attempt, begin_attempt)


@guard(
    "a stage begins the next round early only with input that has come",
    test_early_passes.test_a_stage_with_the_next_round_does_not_wait_for_one_without,
    raises=(queue.Empty,),
    is_slow=True,
)
def begin_rounds_without_input(patch: pytest.MonkeyPatch) -> None:
    swap(patch, StageLinks.has_input, lambda self: True)


@guard(
    "a round that was begun early is the one that comes next",
    test_early_passes.test_the_pass_begun_early_is_the_next_one,
    raises=(queue.Empty,),
    is_slow=True,
)
def continue_with_whatever_was_begun(patch: pytest.MonkeyPatch) -> None:
    adopt = PipelineStage._adopt_begun

    def adopt_anything(self: PipelineStage, progress: StepProgress, round_: Round) -> int:
        num_begun, self._begun = len(self._begun), []
        adopt(self, progress, round_)
        return num_begun

    swap(patch, adopt, adopt_anything)
