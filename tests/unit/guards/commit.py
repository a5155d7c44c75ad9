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
from unit.engine import test_fence
from unit.engine.layers import test_layer_store
from unit.engine.recovery import test_roll_forward
from unit.engine.step import test_commit_messages
from unit.guards.guard import Remove, guard, swap


@guard(
    "votes and decisions of another step or generation are not mixed in",
    test_commit_messages.test_invariant_4_another_step_or_generation_is_not_mixed_in,
    test_commit_messages.test_invariant_4_a_decision_of_another_generation_or_step_is_refused,
)
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


commit_incomplete_sums = guard(
    "a step is committed only if every sum holds every microbatch once",
    test_commit_messages.test_invariant_1_one_missing_or_repeated_microbatch_anywhere_stops_the_commit,
    test_commit_messages.test_invariant_1_a_loss_that_is_missing_or_reported_twice_stops_the_commit,
)(commit_in_spite_of(DecisionKind.INCOMPLETE))

commit_out_of_range = guard(
    "a gradient out of range stops everybody",
    test_commit_messages.test_one_gradient_out_of_range_stops_everyone_and_names_the_layer,
)(commit_in_spite_of(DecisionKind.OUT_OF_RANGE))


@guard(
    "the steps skipped before are known if one engine knows of them",
    test_commit_messages.test_a_gradient_out_of_range_skips_the_step_until_too_many_are_skipped,
)
def believe_the_first_vote_on_skipped_steps(patch: pytest.MonkeyPatch) -> None:
    decide = VoteFormat.decide

    def by_the_first(self: VoteFormat, votes: Message, num_followers: int = 0) -> Decision:
        believed = votes.copy()
        believed[1:, commit_messages._NUM_SKIPPED] = 0
        return decide(self, believed, num_followers)

    swap(patch, decide, by_the_first)


@guard(
    "a skipped step is rolled forward without sums",
    test_roll_forward.test_a_skipped_step_is_applied_without_sums,
)
def skip_with_sums_only(patch: pytest.MonkeyPatch) -> None:
    swap(patch, CommitRecord.is_skipped, property(lambda _: False))


commit_different_sums = guard(
    "replicas with different sums do not commit",
    test_commit_messages.test_replicas_with_different_sums_are_noticed,
)(commit_in_spite_of(DecisionKind.DIVERGED))


@guard(
    "all engines park after a commit, or none",
    test_commit_messages.test_all_engines_park_after_a_commit_or_none,
)
def believe_the_highest_mark(patch: pytest.MonkeyPatch) -> None:
    decide = VoteFormat.decide

    def by_the_highest(self: VoteFormat, votes: Message, num_followers: int = 0) -> Decision:
        decision = decide(self, votes, num_followers)
        highest = int(votes[:, commit_messages._HIGHEST_MARK].max())
        return replace(decision, record=replace(decision.record, next_generation=highest))

    swap(patch, decide, by_the_highest)


@guard(
    "a fenced engine commits nothing of an older generation",
    test_fence.test_invariant_4_a_fenced_engine_passes_no_exchange_of_an_older_generation,
    test_fence.test_invariant_4_a_late_roll_forward_is_refused,
)
def let_fenced_engines_go_on(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Fence.check, lambda self, generation: None)


@guard(
    "a copy that comes after a fence is not installed",
    test_fence.test_a_late_copy_is_not_installed,
    test_layer_store.test_a_copy_that_completes_after_a_fence_is_not_installed,
)
def install_late_copies(patch: pytest.MonkeyPatch) -> None:
    def install(self: Fence, generation: int, change: Callable[[], object]) -> object:
        return change()

    swap(patch, Fence.install, install)


@guard(
    "a fence report waits for a commit that is half done",
    test_fence.test_a_report_waits_for_a_commit_that_was_passed,
)
def report_half_done_commits(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Fence.when_settled, lambda self, call: call())


@guard(
    "a halted engine reports within its last pass, where it cannot commit any more",
    test_fence.test_a_waiting_caller_is_notified_within_the_last_pass,
)
def report_before_the_last_pass(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Fence.when_halted, lambda self, call: call())


@guard(
    "an engine rolls forward only with the sums of the record's step and generation",
    test_roll_forward.test_a_record_decides_how_to_roll_forward,
)
def apply_any_sums(patch: pytest.MonkeyPatch) -> None:
    """Sums of another generation are taken for those of the record."""
    decide = roll_forward.decide_roll_forward

    def with_any_sums(
        record: CommitRecord, *, committed_steps: int, kept: SumsKey | None
    ) -> RollForwardDecision:
        same = kept and replace(kept, generation=record.generation)
        return decide(record, committed_steps=committed_steps, kept=same)

    swap(patch, decide, with_any_sums)


@guard(
    "a step is applied to each layer once",
    test_layer_store.test_invariant_2_a_step_is_applied_to_each_layer_once,
)
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


@guard(
    "a layer that is being changed is no replica",
    test_layer_store.test_a_layer_that_is_being_changed_is_not_held,
)
def hold_layers_that_change(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def updating(self: LayerStore, layer: int, new_version: int) -> Iterator[LayerState]:
        yield self._states[layer]
        self._versions[layer] = new_version

    swap(patch, LayerStore.updating, updating)
