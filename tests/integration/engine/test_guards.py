"""Each guard is needed: engines that lack one fail the tests that are named with it.

tests/unit/guards has those that need no processes.
"""

import pytest

from integration.agent import test_agent
from integration.engine import (
    test_checkpoint_copies,
    test_checkpointed_handover,
    test_evaluation,
    test_lease,
    test_recovery,
    test_skipped_steps,
)
from integration.engine.handover import (
    test_around_the_commit,
    test_joining_and_leaving,
    test_staging,
)
from unit.guards import directives, engines
from unit.guards.engines import on_engines
from unit.guards.guard import Guard, assert_needed, guard, parameters

pytestmark = pytest.mark.integration

GUARDS = (
    guard(
        "an agent passes a repeated directive on once",
        test_agent.test_a_repeated_directive_is_answered_again_but_takes_effect_once,
    )(directives.pass_on_repeated_directives),
    guard(
        "no engine commits before all engines have their sums",
        test_recovery.test_invariant_2_no_engine_commits_before_all_have_the_sums,
    )(on_engines(engines.commit_in_one_phase)),
    guard(
        "directives of older generations are refused",
        test_recovery.test_invariant_4_a_stale_coordinator_changes_nothing,
    )(on_engines(engines.obey_older_generations)),
    guard(
        "an engine without an agent fences itself",
        test_lease.test_it_fences_itself_and_goes_on_after_a_fence_of_the_coordinator,
        is_slow=True,
    )(on_engines(engines.train_without_an_agent)),
    guard(
        "an engine without an agent serves no layers",
        test_lease.test_it_fences_itself_and_goes_on_after_a_fence_of_the_coordinator,
        is_slow=True,
    )(on_engines(engines.serve_without_an_agent)),
    guard(
        "a step that is begun again begins without gradients",
        test_recovery.test_an_engine_is_killed_within_a_step,
        is_slow=True,
    )(on_engines(engines.keep_gradients_of_a_broken_step)),
    guard(
        "an engine that is rolled forward retains no work of the generation before",
        test_around_the_commit.test_a_straggler_rolls_forward_and_parks,
        is_slow=True,
    )(on_engines(engines.retain_work_after_a_roll_forward)),
    guard(
        "an engine that votes activates by its own commit only",
        test_around_the_commit.test_an_engine_that_votes_does_not_switch_on_what_a_followed_layer_says,
        is_slow=True,
    )(on_engines(engines.activate_by_hearsay)),
    guard(
        "layers of the old assignment are kept until the first commit in the new one",
        test_joining_and_leaving.test_layers_of_the_old_assignment_are_kept_until_the_first_commit,
        is_slow=True,
    )(on_engines(engines.drop_layers_at_once)),
    guard(
        "a copy for a checkpoint that a commit overtakes is not written",
        test_checkpoint_copies.test_a_copy_that_a_commit_overtakes_is_not_written,
        is_slow=True,
    )(on_engines(engines.write_torn_copies)),
    guard(
        "a version is written by its owners in the plan that made it",
        test_checkpointed_handover.test_owners_of_the_old_plan_write_a_checkpoint_that_can_be_resumed,
        is_slow=True,
    )(on_engines(engines.let_the_next_owners_write)),
    guard(
        "an engine without memory gives up what is staged",
        test_staging.test_training_gets_the_memory_that_the_next_plan_has_taken,
        is_slow=True,
    )(on_engines(engines.keep_what_is_staged)),
    guard(
        "a skipped step changes no layer and needs no sums",
        test_skipped_steps.test_a_late_engine_is_rolled_forward_without_sums,
        test_skipped_steps.test_a_step_that_was_skipped_needs_no_sums_at_all,
        is_slow=True,
    )(on_engines(engines.need_sums_to_skip)),
    guard(
        "evaluations of a lost pipeline are made again, and counted",
        test_evaluation.test_a_step_that_evaluates_is_finished_by_a_healthy_pipeline,
        is_slow=True,
    )(on_engines(engines.evaluate_in_the_first_round_only)),
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("guard", parameters(GUARDS))
def test_without_its_guard_a_scenario_fails(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_needed(guard, monkeypatch)
