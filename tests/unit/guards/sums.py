"""Remove the guards of gradient sums, and of the rounds of a step."""

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
from planaria_worker.engine.step_progress import StepProgress
from unit.guards.guard import swap


def forget_complete_sums(patch: pytest.MonkeyPatch) -> None:
    """What comes out of an all-reduce is taken for a local sum in the next attempt."""

    def put_complete(self: GradientSums, piece: Piece, values: Tensor) -> bool:
        self.part(piece).copy_(values)
        return False

    swap(patch, GradientSums.put_complete, put_complete)


def add_to_complete_sums(patch: pytest.MonkeyPatch) -> None:
    hook = GradientSums._hook

    def hook_without_knowledge(self: GradientSums, *what: Any) -> Any:
        known, self.num_complete = self.num_complete, {}
        try:
            return hook(self, *what)
        finally:
            self.num_complete = known

    swap(patch, hook, hook_without_knowledge)


def take_any_sum_for_complete(patch: pytest.MonkeyPatch) -> None:
    def count_all(self: gradient_reduction._Attempt, layer: int, num_counted: int) -> int:
        return len(self.counts)

    swap(patch, gradient_reduction._Attempt.count, count_all)


def hear_nobody_before_sums_start(patch: pytest.MonkeyPatch) -> None:
    swap(patch, CompleteSumQuery.is_unheard, lambda self, group: False)


def drop_sums_in_receive_buffers(patch: pytest.MonkeyPatch) -> None:
    def drop(self: GradientSums, layers: Iterable[int]) -> None:
        for layer in self._in_receive_buffer.keys() & set(layers):
            del self._in_receive_buffer[layer]

    swap(patch, GradientSums.copy_to_own_buffers, drop)


def keep_gradients_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    swap(patch, GradientSums.settle, lambda self, layers: None)


def overlook_gradients_out_of_range(patch: pytest.MonkeyPatch) -> None:
    swap(patch, GradientSums.in_range, lambda self, layer: True)


def start_sums_within_the_pass(patch: pytest.MonkeyPatch) -> None:
    def may_start(self: LaunchOrder, bucket: tuple[int, ...]) -> bool:
        return self._incomplete.isdisjoint(bucket)

    swap(patch, LaunchOrder._may_start_early, may_start)


def believe_sums_of_older_attempts(patch: pytest.MonkeyPatch) -> None:
    def begin_attempt(self: StepProgress, generation: int) -> None:
        self.generation = generation

    swap(patch, StepProgress.begin_attempt, begin_attempt)


def begin_rounds_without_input(patch: pytest.MonkeyPatch) -> None:
    swap(patch, StageLinks.has_input, lambda self: True)


def continue_with_whatever_was_begun(patch: pytest.MonkeyPatch) -> None:
    adopt = PipelineStage._adopt_begun

    def adopt_anything(self: PipelineStage, progress: StepProgress, round_: Round) -> int:
        num_begun, self._begun = len(self._begun), []
        adopt(self, progress, round_)
        return num_begun

    swap(patch, adopt, adopt_anything)
