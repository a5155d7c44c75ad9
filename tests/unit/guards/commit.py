"""Remove the guards of a commit: the vote, the fence, and rolling forward."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest
from torch import Tensor

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.recovery import roll_forward
from planaria_worker.engine.recovery.roll_forward import RollForwardDecision, SumsKey
from planaria_worker.engine.step import commit_messages, training_step
from planaria_worker.engine.step.commit_messages import (
    Decision,
    DecisionKind,
    Message,
    VoteFormat,
)
from planaria_worker.models.state import LayerState
from unit.guards.guard import Remove, swap


def mix_messages(patch: pytest.MonkeyPatch) -> None:
    swap(patch, commit_messages._check_same, lambda *_: None)


def commit_in_spite_of(kind: DecisionKind) -> Remove:
    def remove(patch: pytest.MonkeyPatch) -> None:
        find_fault = VoteFormat._find_fault

        def overlook(
            self: VoteFormat, votes: Message, num_pipelines: int
        ) -> tuple[DecisionKind, int]:
            found, layer = find_fault(self, votes, num_pipelines)
            return (DecisionKind.COMMIT, -1) if found is kind else (found, layer)

        swap(patch, find_fault, overlook)

    return remove


def believe_the_highest_mark(patch: pytest.MonkeyPatch) -> None:
    decide = VoteFormat.decide

    def by_the_highest(self: VoteFormat, votes: Message, num_followers: int = 0) -> Decision:
        decision = decide(self, votes, num_followers)
        highest = int(votes[:, commit_messages._HIGHEST_MARK].max())
        return replace(decision, record=replace(decision.record, next_generation=highest))

    swap(patch, decide, by_the_highest)


def let_fenced_engines_go_on(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Fence.check, lambda self, generation: None)


def install_late_copies(patch: pytest.MonkeyPatch) -> None:
    def install(self: Fence, generation: int, change: Callable[[], object]) -> object:
        return change()

    swap(patch, Fence.install, install)


def report_half_done_commits(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Fence.when_settled, lambda self, call: call())


def report_before_the_last_pass(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Fence.when_halted, lambda self, call: call())


def apply_any_sums(patch: pytest.MonkeyPatch) -> None:
    """Sums of another generation are taken for those of the record."""
    decide = roll_forward.decide_roll_forward

    def with_any_sums(
        record: CommitRecord, *, committed_steps: int, kept: SumsKey | None
    ) -> RollForwardDecision:
        same = kept and replace(kept, generation=record.generation)
        return decide(record, committed_steps=committed_steps, kept=same)

    swap(patch, decide, with_any_sums)


def apply_a_step_again(patch: pytest.MonkeyPatch) -> None:
    def apply(
        job: Job,
        store: LayerStore,
        feed: CommitFeed,
        sums: Mapping[int, Tensor],
        record: CommitRecord,
    ) -> None:
        for layer, total in sums.items():
            with store.updating(layer, record.step + 1) as state:
                training_step.apply_sum(job, state, total, record)
            feed.publish(layer, record, total)

    swap(patch, training_step.apply_step, apply)


def hold_layers_that_change(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def updating(self: LayerStore, layer: int, new_version: int) -> Iterator[LayerState]:
        yield self._states[layer]
        self._versions[layer] = new_version

    swap(patch, LayerStore.updating, updating)
