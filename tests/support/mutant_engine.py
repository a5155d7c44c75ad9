"""An engine without one of its guards, to see that the tests of the guard fail.

PLANARIA_TEST_MUTANT=one_phase python -m support.mutant_engine --config FILE
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

from torch import Tensor

from planaria_worker.engine.layers import copy as copying
from planaria_worker.engine.layers.checkpoint import checkpointer
from planaria_worker.engine.numerics import accumulate
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.recovery import fence, handover, staging
from planaria_worker.engine.recovery import training_state as training_state
from planaria_worker.engine.reduction import gradient_reduction as reduction
from planaria_worker.engine.reduction.complete_sums import Piece
from planaria_worker.engine.step import commit_messages as exchange
from planaria_worker.engine.step import pipeline_stage as pipeline
from planaria_worker.engine.step import training_loop as training
from planaria_worker.engine.step import two_phase_commit as two_phase_commit
from planaria_worker.engine.step.commit_messages import Message, Outcome, Verdict
from planaria_worker.engine.step.commit_record import CommitRecord
from planaria_worker.engine.step.training_context import TrainingContext


def one_phase() -> None:
    """Whoever has its own sums commits, without hearing whether the others have theirs."""

    def run(self: Any, claim: Message, step: int) -> two_phase_commit.Agreed:
        record = CommitRecord(
            step=step,
            generation=self._generation,
            gradient_norm=0.0,  # right as long as nothing is clipped
            loss=0.0,
            num_tokens=self._format.num_tokens,
        )
        outcome = Outcome(verdict=Verdict.COMMIT, layer=-1, record=record)
        return two_phase_commit.Agreed(outcome=outcome, is_passed=True, cause=None, broken=None)

    two_phase_commit.TwoPhaseCommit.run = run  # type: ignore[method-assign]


def no_generation_check() -> None:
    """Directives of older generations are obeyed, and fences hold nobody back."""

    def see(self: Any, generation: int) -> None:
        self._newest = max(self._newest, generation)

    fence.Fence._see = see  # type: ignore[method-assign]
    fence.Fence.check = lambda self, generation: None  # type: ignore[method-assign]


def sums_in_another_order() -> None:
    """The second pipeline sums layer 3 before layer 4, the others after it."""
    mutant: Any = reduction
    cut = mutant.GradientReduction._cut

    def swapped(self: Any, view: PlanView, groups: Any) -> list[Any]:
        buckets = list(cut(self, view, groups))
        layers = [bucket.layers for bucket in buckets]
        if view.row == 1 and (4,) in layers:
            here, there = layers.index((4,)), layers.index((3,))
            buckets[here], buckets[there] = buckets[there], buckets[here]
        return buckets

    def cut_between_layers(layers: Any, sizes: Any, _limit: int) -> list[Any]:
        return [(Piece(layer=x, start=0, end=sizes[x]),) for x in reversed(layers)]

    mutant.cut_into_buckets = cut_between_layers
    mutant.GradientReduction._cut = swapped


def whole_sums_unknown() -> None:
    """What comes out of an all-reduce is taken for local in the next attempt."""
    mutant: Any = accumulate.GradientSums

    def copy(self: Any, piece: Piece, values: Tensor) -> bool:
        self.part(piece).copy_(values)
        return False

    mutant.put_whole = copy


def whole_sums_grow() -> None:
    """What is computed behind an attempt is added to what is whole as well."""
    mutant: Any = accumulate.GradientSums
    hook = mutant._hook

    def hook_without_knowledge(self: Any, *what: Any) -> Any:
        known, self.num_whole = self.num_whole, {}
        try:
            return hook(self, *what)
        finally:
            self.num_whole = known

    mutant._hook = hook_without_knowledge


def broken_gradients_kept() -> None:
    """Who begins a step again adds to what is left of its gradients."""
    mutant: Any = training
    begin = mutant.begin_step
    left: dict[int, tuple[int, Tensor]] = {}

    def begin_with_the_rest(context: TrainingContext, step: int) -> None:
        begin(context, step)
        context.sums.settle(context.sums.sums)
        for layer, total in context.sums.sums.items() if context.pipeline else ():
            begun, before = left.get(layer, (step, total))
            if begun == step:
                total.copy_(before)
            left[layer] = step, total

    mutant.begin_step = begin_with_the_rest


def impatient_source() -> None:
    """No guard is missing, but every sum is too large to be kept for a follower."""
    defaults: Any = copying.CommitFeed.__init__.__kwdefaults__
    defaults.update(num_kept=0, kept_bytes=0)


def promise_for_ever() -> None:
    """A straggler that is told of a commit goes on in the generation that the commit has ended."""

    def retained_after(self: Any, _record: CommitRecord) -> Any:
        return self.retained_work and self.retained_work.after_commit()

    mutant: Any = training_state.TrainingState
    mutant.retained_after = retained_after


def hearsay() -> None:
    """An engine takes its place when those that it follows have the commit, with or without it."""
    mutant: Any = staging.StagedChange
    mutant.is_in_exchange = property(lambda self: False, lambda self, value: None)


def layers_dropped_at_once() -> None:
    """Layers of the place before are gone before those who take them over may have them."""
    mutant: Any = handover.Handover
    take = mutant.take

    def take_and_drop(self: Any, *what: Any) -> Any:
        context = take(self, *what)
        self._builder.resources.store.keep(context.view.hosted_layers)
        return context

    mutant.take = take_and_drop


def torn_copy() -> None:
    """A copy for a checkpoint is not looked at again when it is complete."""
    mutant: Any = checkpointer.Checkpointer

    def copy(self: Any, layer: int, version: int) -> dict[str, Tensor]:
        copies = {}
        for name, tensor in self._store.tensors(layer).items():
            copies[name] = tensor.detach().to("cpu", copy=True)
            self._failpoints.hit("checkpoint_copy", step=version, microbatch=layer)
        return copies

    mutant._copy = copy


def next_owners_write() -> None:
    """Behind a commit that changes the plan, the owners in the next plan write its version."""
    mutant: Any = training.TrainingLoop
    go_on = mutant._go_on

    def go_on_in_the_next_view(self: Any, context: Any, done: Any) -> Any:
        announce = self._checkpointer.announce

        def announce_next(_view: Any, version: int) -> Any:
            staged_change = self._handover.behind(done.record)
            return announce(staged_change.view if staged_change else context.view, version)

        self._checkpointer.announce = announce_next
        try:
            return go_on(self, context, done)
        finally:
            self._checkpointer.announce = announce

    mutant._go_on = go_on_in_the_next_view


def first_pass_evaluates() -> None:
    """What a lost pipeline has left is trained on, but what rode on it is not evaluated again."""
    mutant: Any = pipeline.PipelineStage
    evaluate = mutant._evaluate

    def evaluate_first(self: Any, round_: Any) -> None:
        if not self._progress.finished:
            evaluate(self, round_)

    mutant._evaluate = evaluate_first


def evaluations_uncounted() -> None:
    """The same, and nobody counts what was evaluated."""
    first_pass_evaluates()
    mutant: Any = exchange.ExchangeFormat
    mutant._num_evaluated = lambda _self, _step: ANY


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant
    for mutant in (
        one_phase,
        no_generation_check,
        sums_in_another_order,
        whole_sums_unknown,
        whole_sums_grow,
        broken_gradients_kept,
        impatient_source,
        promise_for_ever,
        hearsay,
        layers_dropped_at_once,
        torn_copy,
        next_owners_write,
        first_pass_evaluates,
        evaluations_uncounted,
    )
}
