"""Remove guards in an engine's process, before it starts: for scenarios on real processes.

`on_engines(remove)` is what a test's own process does: all engines that it starts go without.
"""

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from torch import Tensor

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.layers.checkpoint.checkpointer import Checkpointer
from planaria_worker.engine.layers.copy import CommitFeed, CopyServer
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.recovery.current_training import CurrentTraining
from planaria_worker.engine.recovery.handover import Handover
from planaria_worker.engine.recovery.retained_work import RetainedWork
from planaria_worker.engine.recovery.staging import StagedChange
from planaria_worker.engine.step import training_step
from planaria_worker.engine.step.commit_messages import (
    Decision,
    DecisionKind,
    Message,
    VoteFormat,
)
from planaria_worker.engine.step.evaluation_pass import EvaluationPass
from planaria_worker.engine.step.training_context import TrainingContext
from planaria_worker.engine.step.two_phase_commit import CommitResult, TwoPhaseCommit
from planaria_worker.engine.step_progress import StepProgress
from planaria_worker.engine.training.trainer import Trainer
from planaria_worker.engine.training.training_loop import TrainingLoop
from support.engines.processes import Engines
from unit.guards.guard import Remove, swap


def on_engines(remove: Remove) -> Remove:
    def remove_on_engines(patch: pytest.MonkeyPatch) -> None:
        with pytest.MonkeyPatch.context() as trial:
            remove(trial)  # fails here if it does not fit the product, and not in the engines
        patch.setattr(Engines, "without", remove)

    return remove_on_engines


def train_without_an_agent(patch: pytest.MonkeyPatch) -> None:
    """An engine only says that its agent is away for too long."""
    swap(patch, Trainer.fence_itself, lambda self, reason: None)


def keep_what_is_staged(patch: pytest.MonkeyPatch) -> None:
    """An engine without memory is at fault, though the next plan has taken it."""
    swap(patch, Handover.give_way, lambda self: False)


def need_sums_to_skip(patch: pytest.MonkeyPatch) -> None:
    """A late engine rolls a skipped step forward only from complete sums."""
    swap(patch, CommitRecord.is_skipped, property(lambda self: False))


def serve_without_an_agent(patch: pytest.MonkeyPatch) -> None:
    """A fenced engine serves layers though nobody knows any more what they are worth."""
    swap(patch, CopyServer.suspend, lambda self: None)


def commit_in_one_phase(patch: pytest.MonkeyPatch) -> None:
    """An engine with its own sums commits, without hearing whether the others have theirs."""

    def run(self: TwoPhaseCommit, vote: Message, step: int) -> CommitResult:
        record = CommitRecord(
            step=step,
            generation=self._generation,
            gradient_norm=0.0,
            loss=0.0,
            num_tokens=self._format.num_tokens,
        )
        decision = Decision(kind=DecisionKind.COMMIT, layer=-1, record=record)
        return CommitResult(decision=decision, is_committed=True, cause=None, broken=None)

    swap(patch, TwoPhaseCommit.run, run)


def obey_older_generations(patch: pytest.MonkeyPatch) -> None:
    def see(self: Fence, generation: int) -> None:
        self._newest = max(self._newest, generation)

    swap(patch, Fence._see, see)
    swap(patch, Fence.check, lambda self, generation: None)


def keep_gradients_of_a_broken_step(patch: pytest.MonkeyPatch) -> None:
    """An engine that begins a step again adds to what is left of its gradients."""
    begin = training_step.begin_step
    left: dict[int, tuple[int, Tensor]] = {}

    def begin_with_the_rest(context: TrainingContext, step: int) -> None:
        begin(context, step)
        context.sums.settle(context.sums.sums)
        for layer, total in context.sums.sums.items() if context.pipeline else ():
            begun, before = left.get(layer, (step, total))
            if begun == step:
                total.copy_(before)
            left[layer] = step, total

    swap(patch, begin, begin_with_the_rest)


def retain_work_after_a_roll_forward(patch: pytest.MonkeyPatch) -> None:
    """A straggler goes on in the generation that the commit has ended."""

    def retained_after_commit(self: CurrentTraining, _: CommitRecord) -> RetainedWork | None:
        return self.retained_work and self.retained_work.after_commit()

    swap(patch, CurrentTraining.retained_after_commit, retained_after_commit)


def activate_by_hearsay(patch: pytest.MonkeyPatch) -> None:
    """An engine activates when those that it follows have the commit, with or without it."""
    never = property(lambda self: False, lambda self, value: None)
    patch.setattr(StagedChange, "is_voting", never, raising=False)


def drop_layers_at_once(patch: pytest.MonkeyPatch) -> None:
    replace_context = Handover.replace_context

    def activate_and_drop(
        self: Handover, staged_change: StagedChange, record: CommitRecord
    ) -> TrainingContext:
        context: TrainingContext = replace_context(self, staged_change, record)
        self._builder.resources.store.keep(context.view.hosted_layers)
        return context

    swap(patch, replace_context, activate_and_drop)


def write_torn_copies(patch: pytest.MonkeyPatch) -> None:
    """A copy for a checkpoint is not checked again when it is complete."""

    def copy(self: Checkpointer, layer: int, version: int, _: object) -> dict[str, Tensor]:
        copies = {}
        for name, tensor in self._store.tensors(layer).items():
            copies[name] = tensor.detach().to("cpu", copy=True)
            self._failpoints.hit("checkpoint_copy", step=version, microbatch=layer)
        return copies

    swap(patch, Checkpointer._copy, copy)


def let_the_next_owners_write(patch: pytest.MonkeyPatch) -> None:
    """After a commit that changes the plan, the owners in the next plan write its version."""
    loop: Any = TrainingLoop
    go_on = loop._go_on

    def go_on_in_the_next_view(self: Any, context: Any, done: Any) -> Any:
        announce = self._checkpointer.announce

        def announce_next(_: PlanView, version: int) -> Sequence[int]:
            change = self._handover.change_at(done.record)
            return announce(change.view if change else context.view, version)  # type: ignore[no-any-return]

        self._checkpointer.announce = announce_next
        try:
            return go_on(self, context, done)
        finally:
            self._checkpointer.announce = announce

    swap(patch, TrainingLoop._go_on, go_on_in_the_next_view)


def evaluate_in_the_first_round_only(patch: pytest.MonkeyPatch) -> None:
    """What a lost pipeline has left is trained on, but not evaluated; and nobody counts it."""
    run = EvaluationPass.run

    def run_first(self: EvaluationPass, progress: StepProgress, *what: Any) -> None:
        if not progress.finished:
            run(self, progress, *what)

    swap(patch, run, run_first)
    swap(patch, VoteFormat._num_evaluated, lambda self, step: ANY)


def keep_no_sum_for_followers(patch: pytest.MonkeyPatch) -> None:
    """No guard is missing, but every sum is too large to be kept for a follower."""
    begin = CommitFeed.__init__
    swap(patch, begin, lambda self: begin(self, num_kept=0, kept_bytes=0))
