"""All guards that are removed in this process, each with the tests that fail without it."""

import queue

from planaria_worker.engine.layers.checkpoint import CheckpointError
from planaria_worker.engine.step.commit_messages import DecisionKind
from planaria_worker.engine.step.training_step import RefusedStepError
from unit.coordinator import (
    test_agents_away,
    test_contingencies,
    test_evaluation,
    test_finishing_a_step,
    test_groups_that_fail,
    test_late_writers,
    test_lost_joiners,
    test_node_updates,
    test_reports,
    test_resuming,
    test_services,
    test_who_keeps_the_step,
    test_worker_service,
)
from unit.engine import (
    test_checkpointing,
    test_commit_messages,
    test_current_groups,
    test_directives,
    test_early_passes,
    test_fence,
    test_following,
    test_gradients,
    test_launch_order,
    test_layer_store,
    test_roll_forward,
    test_step_progress,
)
from unit.guards import commit, coordinator, directives, groups, layers, sums
from unit.guards.guard import Guard
from unit.guards.protocol import PROTOCOL
from unit.worker_comm import test_copying, test_following_peers, test_group
from unit.worker_math import test_numerics

COMMIT = (
    Guard(
        name="votes and decisions of another step or generation are not mixed in",
        remove=commit.mix_messages,
        scenarios=(
            test_commit_messages.test_invariant_4_another_step_or_generation_is_not_mixed_in,
            test_commit_messages.test_invariant_4_a_decision_of_another_generation_or_step_is_refused,
        ),
    ),
    Guard(
        name="a step is committed only if every sum holds every microbatch once",
        remove=commit.commit_in_spite_of(DecisionKind.INCOMPLETE),
        scenarios=(
            test_commit_messages.test_invariant_1_one_missing_or_repeated_microbatch_anywhere_stops_the_commit,
            test_commit_messages.test_invariant_1_a_loss_that_is_missing_or_reported_twice_stops_the_commit,
        ),
    ),
    Guard(
        name="a gradient out of range stops everybody",
        remove=commit.commit_in_spite_of(DecisionKind.OUT_OF_RANGE),
        scenarios=(
            test_commit_messages.test_one_gradient_out_of_range_stops_everyone_and_names_the_layer,
        ),
    ),
    Guard(
        name="replicas with different sums do not commit",
        remove=commit.commit_in_spite_of(DecisionKind.DIVERGED),
        scenarios=(test_commit_messages.test_replicas_with_different_sums_are_noticed,),
    ),
    Guard(
        name="all engines park after a commit, or none",
        remove=commit.believe_the_highest_mark,
        scenarios=(test_commit_messages.test_all_engines_park_after_a_commit_or_none,),
    ),
    Guard(
        name="a fenced engine commits nothing of an older generation",
        remove=commit.let_fenced_engines_go_on,
        scenarios=(
            test_fence.test_invariant_4_a_fenced_engine_passes_no_exchange_of_an_older_generation,
            test_fence.test_invariant_4_a_late_roll_forward_is_refused,
        ),
    ),
    Guard(
        name="a copy that comes after a fence is not installed",
        remove=commit.install_late_copies,
        scenarios=(
            test_fence.test_a_late_copy_is_not_installed,
            test_layer_store.test_a_copy_that_completes_after_a_fence_is_not_installed,
        ),
    ),
    Guard(
        name="a fence report waits for a commit that is half done",
        remove=commit.report_half_done_commits,
        scenarios=(test_fence.test_a_report_waits_for_a_commit_that_was_passed,),
    ),
    Guard(
        name="a halted engine reports within its last pass, where it cannot commit any more",
        remove=commit.report_before_the_last_pass,
        scenarios=(test_fence.test_a_waiting_caller_is_notified_within_the_last_pass,),
    ),
    Guard(
        name="an engine rolls forward only with the sums of the record's step and generation",
        remove=commit.apply_any_sums,
        scenarios=(test_roll_forward.test_a_record_decides_how_to_roll_forward,),
    ),
    Guard(
        name="a step is applied to each layer once",
        remove=commit.apply_a_step_again,
        scenarios=(test_layer_store.test_invariant_2_a_step_is_applied_to_each_layer_once,),
    ),
    Guard(
        name="an engine carries out a repeated directive once",
        remove=directives.carry_out_repeated_directives,
        scenarios=(
            test_directives.test_a_repeated_directive_is_carried_out_once_and_answered_again,
        ),
    ),
    Guard(
        name="a layer that is being changed is no replica",
        remove=commit.hold_layers_that_change,
        scenarios=(test_layer_store.test_a_layer_that_is_being_changed_is_not_held,),
    ),
)

SUMS = (
    Guard(
        name="complete sums are known, and added once",
        remove=sums.forget_complete_sums,
        scenarios=(
            test_step_progress.test_complete_sums_of_one_generation_are_the_input_of_the_next,
        ),
    ),
    Guard(
        name="a complete sum takes in nothing more",
        remove=sums.add_to_complete_sums,
        scenarios=(test_numerics.test_a_complete_sum_accepts_nothing_more,),
    ),
    Guard(
        name="only a sum that holds every microbatch once is complete",
        remove=sums.take_any_sum_for_complete,
        scenarios=(test_step_progress.test_a_sum_with_a_microbatch_twice_is_not_complete,),
    ),
    Guard(
        name="no sum starts before its owners have said which sums they have complete",
        remove=sums.hear_nobody_before_sums_start,
        scenarios=(
            test_step_progress.test_complete_sums_of_one_generation_are_the_input_of_the_next,
        ),
    ),
    Guard(
        name="a complete sum is saved before its buffer is used again",
        remove=sums.drop_sums_in_receive_buffers,
        scenarios=(
            test_gradients.test_layers_that_travel_apart_have_the_same_sums,
            test_step_progress.test_complete_sums_of_one_generation_are_the_input_of_the_next,
        ),
        raises=(RefusedStepError,),
    ),
    Guard(
        name="a step begins with nothing of the one before",
        remove=sums.keep_gradients_of_the_step_before,
        scenarios=(
            test_numerics.test_a_gradient_nothing_was_added_to_is_zero,
            test_gradients.test_a_follower_adds_nothing_of_the_step_before,
        ),
    ),
    Guard(
        name="a sum with a gradient out of range is not complete",
        remove=sums.overlook_gradients_out_of_range,
        scenarios=(test_gradients.test_a_sum_with_a_gradient_out_of_range_is_not_complete,),
    ),
    Guard(
        name="the sums that the last layer completes wait for the end of the pass",
        remove=sums.start_sums_within_the_pass,
        scenarios=(
            test_launch_order.test_all_ranks_start_in_one_order_without_deadlock,
            test_launch_order.test_sums_completed_by_the_last_layer_wait_for_the_end_of_the_pass,
        ),
        is_slow=True,
    ),
    Guard(
        name="an attempt believes nothing of the sums of an older one",
        remove=sums.believe_sums_of_older_attempts,
        scenarios=(
            test_step_progress.test_a_new_attempt_keeps_what_is_computed_and_nothing_of_the_sums,
        ),
    ),
    Guard(
        name="a stage begins the next round early only with input that has come",
        remove=sums.begin_rounds_without_input,
        scenarios=(
            test_early_passes.test_a_stage_with_the_next_round_does_not_wait_for_one_without,
        ),
        raises=(queue.Empty,),
        is_slow=True,
    ),
    Guard(
        name="a round that was begun early is the one that comes next",
        remove=sums.continue_with_whatever_was_begun,
        scenarios=(test_early_passes.test_the_pass_begun_early_is_the_next_one,),
        raises=(queue.Empty,),
        is_slow=True,
    ),
)

GROUPS = (
    Guard(
        name="a group with an operation in flight is not retained",
        remove=groups.retain_busy_groups,
        scenarios=(
            test_group.TestRetain.test_not_while_something_is_under_way,
            test_group.TestRetain.test_not_while_something_starts,
        ),
    ),
    Guard(
        name="a group is retained only where all its members name it",
        remove=groups.retain_groups_that_some_name,
        scenarios=(test_who_keeps_the_step.test_a_group_is_kept_where_all_its_members_name_it,),
    ),
    Guard(
        name="a group for small sums is not used for gradients",
        remove=groups.use_vote_groups_for_gradients,
        scenarios=(
            test_current_groups.TestRetainIdle.test_a_group_for_small_sums_is_not_reopened_for_gradients,
        ),
    ),
)

LAYERS = (
    Guard(
        name="a copy that a commit overtakes is taken back",
        remove=layers.send_torn_copies,
        scenarios=(test_copying.test_a_commit_in_the_middle_is_noticed,),
    ),
    Guard(
        name="what arrives has the source's SHA-256",
        remove=layers.believe_any_checksum,
        scenarios=(test_copying.test_a_damaged_or_truncated_copy_is_refused,),
    ),
    Guard(
        name="a follower is first sent a layer of one version",
        remove=layers.send_layers_of_two_versions,
        scenarios=(
            test_following_peers.test_a_step_committed_while_a_layer_is_read_is_in_it_or_sent_after_it,
        ),
        is_slow=True,
    ),
    Guard(
        name="a follower applies no step twice",
        remove=layers.apply_followed_steps_again,
        scenarios=(test_following.test_a_step_that_a_layer_was_sent_with_is_not_applied_again,),
    ),
    Guard(
        name="a checkpoint is complete only with its manifest, which comes last",
        remove=layers.believe_a_folder_without_a_manifest,
        scenarios=(test_checkpointing.test_a_folder_without_its_manifest_is_no_checkpoint,),
    ),
    Guard(
        name="a checkpoint is renamed before it is removed",
        remove=layers.remove_checkpoints_in_place,
        scenarios=(
            test_checkpointing.test_an_interrupted_removal_leaves_nothing_that_looks_complete,
        ),
    ),
    Guard(
        name="a checkpoint is sealed when every file is what its writer said",
        remove=layers.seal_without_looking,
        scenarios=(test_checkpointing.test_a_file_that_others_wrote_and_this_node_does_not_see,),
    ),
    Guard(
        name="a checkpoint that another engine has sealed meanwhile is sealed",
        remove=layers.seal_once_only,
        scenarios=(test_checkpointing.test_another_engine_may_seal_first,),
        raises=(CheckpointError,),
    ),
)

COORDINATOR = (
    Guard(
        name="a decision is stored before a directive is sent",
        remove=coordinator.act_before_it_is_stored,
        scenarios=(test_agents_away.test_a_directive_that_cannot_be_stored_is_not_sent,),
    ),
    Guard(
        name="a job makes one decision at a time",
        remove=coordinator.decide_on_signals_at_once,
        scenarios=(test_reports.test_results_that_come_while_one_is_stored_all_count,),
    ),
    Guard(
        name="a lost node is stored as lost before jobs hear of it",
        remove=coordinator.tell_of_a_loss_before_it_is_stored,
        scenarios=(test_node_updates.test_a_job_hears_of_a_lost_node_once_that_is_stored,),
    ),
    Guard(
        name="a directive is resolved when what follows from its result is stored",
        remove=coordinator.resolve_before_it_is_decided,
        scenarios=(test_reports.test_a_directive_is_not_resolved_before_its_result_is_decided_on,),
    ),
    Guard(
        name="a change is completed even if the caller goes away",
        remove=coordinator.end_changes_with_their_caller,
        scenarios=(
            test_services.test_a_submission_whose_caller_goes_away_is_a_job_or_is_not,
            test_services.test_a_drain_whose_caller_goes_away_is_known_where_it_is_stored,
        ),
    ),
    Guard(
        name="a restored job learns what became of its nodes",
        remove=coordinator.restore_jobs_without_news_of_nodes,
        scenarios=(
            test_node_updates.test_a_node_that_is_lost,
            test_node_updates.test_a_node_that_is_to_be_freed,
            test_node_updates.test_a_node_that_is_to_be_kept_after_all,
            test_node_updates.test_a_node_that_is_lost_while_it_is_given_to_a_job,
        ),
    ),
    Guard(
        name="a restored job knows the steps and the evaluation that were stored since its run",
        remove=coordinator.restore_runs_as_they_were_stored,
        scenarios=(test_evaluation.test_stored_steps_outlive_the_coordinator,),
    ),
    Guard(
        name="a job that has ended is restored while its engines have yet to stop",
        remove=coordinator.restore_no_ended_jobs,
        scenarios=(
            test_resuming.test_a_checkpoint_that_is_sealed_while_its_job_is_cancelled_is_known,
            test_resuming.test_a_checkpoint_that_was_not_sealed_before_its_engine_stopped_is_given_up,
        ),
    ),
    Guard(
        name="the planner is asked again without a joiner that is lost meanwhile",
        remove=coordinator.keep_lost_joiners_in_the_plan,
        scenarios=(
            test_lost_joiners.test_a_joiner_that_the_planner_was_asked_for_and_that_is_lost_is_planned_without,
        ),
    ),
    Guard(
        name="groups that cannot be made the first time stop no healthy pipeline",
        remove=coordinator.stop_whole_pipelines_at_once,
        scenarios=(
            test_groups_that_fail.test_groups_that_cannot_be_made_stop_no_healthy_pipeline,
            test_groups_that_fail.test_healthy_pipelines_compute_while_groups_are_rebuilt,
        ),
    ),
    Guard(
        name="no pipeline is given more microbatches than its memory holds",
        remove=coordinator.give_pipelines_more_than_they_hold,
        scenarios=(test_who_keeps_the_step.test_no_pipeline_is_given_more_than_fits_in_its_memory,),
    ),
    Guard(
        name="a node is reported as lost even if its engine was seen to die first",
        remove=coordinator.forget_nodes_of_dead_engines,
        scenarios=(
            test_finishing_a_step.test_a_node_is_recorded_as_lost_even_if_its_engine_was_seen_to_die,
        ),
    ),
    Guard(
        name="a node is reported as lost even after the recovery from its engine's death",
        remove=coordinator.forget_nodes_after_the_recovery,
        scenarios=(
            test_finishing_a_step.test_a_node_whose_loss_is_known_only_after_the_recovery_is_recorded_as_lost,
        ),
    ),
    Guard(
        name="layers of a checkpoint that others write by now stay with them",
        remove=coordinator.believe_late_writers,
        scenarios=(
            test_late_writers.test_reports_of_a_late_engine_are_repeated,
            test_late_writers.test_layers_that_a_fence_has_given_to_others_stay_with_them,
            test_late_writers.test_layers_given_back_during_a_fence_are_reassigned,
        ),
        raises=(KeyError,),
    ),
    Guard(
        name="contingency plans that were interrupted are asked for again",
        remove=coordinator.believe_interrupted_plans,
        scenarios=(test_contingencies.test_plans_that_were_interrupted_are_asked_for_again,),
    ),
    Guard(
        name="text of engines is stored without NUL",
        remove=coordinator.store_any_text,
        scenarios=(test_worker_service.test_text_that_cannot_be_stored_is_replaced,),
    ),
)

GUARDS = (*COMMIT, *SUMS, *GROUPS, *LAYERS, *COORDINATOR, *PROTOCOL)
