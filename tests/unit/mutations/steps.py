"""What keeps a step whole: its sums, and its commit."""

from unit.mutations.mutation import Mutation

FENCE = "worker/planaria_worker/engine/recovery/fence.py"
EXCHANGE = "worker/planaria_worker/engine/step/commit_messages.py"
REDUCTION = "worker/planaria_worker/engine/reduction/gradient_reduction.py"
LEDGER = "worker/planaria_worker/engine/step/step_progress.py"
LAUNCHES = "worker/planaria_worker/engine/reduction/launch_order.py"
STEP = "worker/planaria_worker/engine/step/training_step.py"
PIPELINE = "worker/planaria_worker/engine/step/pipeline_stage.py"
ACCUMULATE = "worker/planaria_worker/engine/numerics/accumulate.py"
DIRECTIVES = "worker/planaria_worker/engine/process/directives.py"
FROM_AGENT = "services/coordinator/planaria_coordinator/entrypoints/grpc/from_agent.py"
FINISH_STEP = "services/coordinator/planaria_coordinator/domain/recovery/finish_step.py"

TEST_FENCE = "tests/unit/engine/test_fence.py"
TEST_EXCHANGE = "tests/unit/engine/test_exchange.py"
TEST_LEDGER = "tests/unit/engine/test_ledger.py"
TEST_LAUNCHES = "tests/unit/engine/test_launches.py"
TEST_GRADIENTS = "tests/unit/engine/test_gradients.py"
TEST_NUMERICS = "tests/unit/worker_math/test_numerics.py"
TEST_IN_STEP = "tests/integration/engine/test_in_step.py"
TEST_STEP_MESSAGES = "tests/unit/coordinator/test_step_messages.py"
TEST_WHO_KEEPS = "tests/unit/coordinator/test_who_keeps_the_step.py"

EXCHANGES = (
    Mutation(
        guard="a fenced engine passes no exchange",
        path=FENCE,
        lines="            self.check(generation)\n            self._is_settled = False\n",
        without="            self._is_settled = False\n",
        seen_by=(
            f"{TEST_FENCE}"
            "::test_invariant_4_a_fenced_engine_passes_no_exchange_of_an_older_generation",
        ),
    ),
    Mutation(
        guard="claims and verdicts of another step or generation are not mixed in",
        path=EXCHANGE,
        lines="_check_same(below[_GENERATION], below[_STEP], own[_GENERATION], own[_STEP])",
        without="pass",
        seen_by=(f"{TEST_EXCHANGE}::test_invariant_4_another_step_or_generation_is_not_mixed_in",),
    ),
    Mutation(
        guard="claims and verdicts of another step or generation are not mixed in",
        path=EXCHANGE,
        lines="_check_same(row[_GENERATION], row[_STEP], rows[0][_GENERATION], rows[0][_STEP])",
        without="pass",
        seen_by=(f"{TEST_EXCHANGE}::test_invariant_4_another_step_or_generation_is_not_mixed_in",),
    ),
    Mutation(
        guard="claims and verdicts of another step or generation are not mixed in",
        path=EXCHANGE,
        lines="        _check_same(message[0], message[1], generation, step)\n",
        without="",
        seen_by=(
            f"{TEST_EXCHANGE}::test_invariant_4_a_verdict_of_another_generation_or_step_is_refused",
        ),
    ),
    Mutation(
        guard="claims and verdicts of another step or generation are not mixed in",
        path=EXCHANGE,
        lines="if (generation, step) != (own_generation, own_step):",
        without="if step != own_step:",
        seen_by=(
            f"{TEST_EXCHANGE}::test_invariant_4_another_step_or_generation_is_not_mixed_in",
            f"{TEST_EXCHANGE}::test_invariant_4_a_verdict_of_another_generation_or_step_is_refused",
        ),
    ),
    Mutation(
        guard="all park behind a commit, or none",
        path=EXCHANGE,
        lines="int(highest) if lowest == highest else 0",
        without="int(highest)",
        seen_by=(f"{TEST_EXCHANGE}::test_all_park_behind_a_commit_or_none",),
    ),
    Mutation(
        guard="all park behind a commit, or none",
        path=EXCHANGE,
        lines="        merged[_LOWEST_MARK] = min(below[_LOWEST_MARK], own[_LOWEST_MARK])\n",
        without="",
        seen_by=(f"{TEST_EXCHANGE}::test_all_park_behind_a_commit_or_none",),
    ),
    Mutation(
        guard="every layer's sum holds every microbatch once",
        path=EXCHANGE,
        lines="if incomplete.size:",
        without="if False:",
        seen_by=(
            f"{TEST_EXCHANGE}"
            "::test_invariant_1_one_missing_or_repeated_microbatch_anywhere_stops_the_commit",
        ),
    ),
    Mutation(
        guard="every loss is reported once",
        path=EXCHANGE,
        lines="not is_reported.all() or ",
        without="",
        seen_by=(
            f"{TEST_EXCHANGE}"
            "::test_invariant_1_a_loss_that_is_missing_or_reported_twice_stops_the_commit",
        ),
    ),
    Mutation(
        guard="a gradient out of range is flagged, and stops everybody",
        path=ACCUMULATE,
        lines="if in_range is not True:",
        without="if False:",
        seen_by=(f"{TEST_NUMERICS}::test_the_layer_out_of_range_is_named",),
    ),
    Mutation(
        guard="a gradient out of range is flagged, and stops everybody",
        path=EXCHANGE,
        lines="        merged[_OUT_OF_RANGE] = min(below[_OUT_OF_RANGE], own[_OUT_OF_RANGE])\n",
        without="",
        seen_by=(
            f"{TEST_EXCHANGE}::test_one_gradient_out_of_range_stops_everyone_and_names_the_layer",
        ),
    ),
    Mutation(
        guard="a gradient out of range is flagged, and stops everybody",
        path=EXCHANGE,
        lines="if out_of_range != _NO_FAULT:",
        without="if False:",
        seen_by=(
            f"{TEST_EXCHANGE}::test_one_gradient_out_of_range_stops_everyone_and_names_the_layer",
        ),
    ),
    Mutation(
        guard="replicas with different sums do not commit",
        path=EXCHANGE,
        lines="if diverged != _NO_FAULT:",
        without="if False:",
        seen_by=(f"{TEST_EXCHANGE}::test_replicas_with_different_sums_are_noticed",),
    ),
    Mutation(
        guard="replicas with different sums do not commit",
        path=EXCHANGE,
        lines="if self.is_reproducible and differs.size:",
        without="if False:",
        seen_by=(f"{TEST_EXCHANGE}::test_replicas_with_different_sums_are_noticed[True]",),
    ),
)

SUMS = (
    Mutation(
        guard="an all-reduce works on a copy of the local sums",
        path=REDUCTION,
        lines=(
            "                work.wait()\n"
            "                values, arrived = self._parts(bucket, copy)\n"
        ),
        without=(  # what it has come to, whole or half, is where the local sums were
            "                values, arrived = self._parts(bucket, copy)\n"
            "                try:\n"
            "                    work.wait()\n"
            "                finally:\n"
            "                    for piece, value in zip(bucket.pieces, values, strict=True):\n"
            "                        self._sums.part(piece).copy_(value)\n"
        ),
        seen_by=(f"{TEST_LEDGER}::TestSteps",),
    ),
    Mutation(
        guard=(
            "a whole sum that was left in a copy comes home before the copy is used again, "
            "and before another generation sums"
        ),
        path=REDUCTION,
        lines="        self._sums.bring_home(lent.layers)\n",
        without="",
        seen_by=(
            f"{TEST_GRADIENTS}::test_layers_that_travel_apart_have_the_same_sums[by layer-False]",
            f"{TEST_LEDGER}::TestSteps",
        ),
    ),
    Mutation(
        guard=(
            "a whole sum that was left in a copy comes home before the copy is used again, "
            "and before another generation sums"
        ),
        path=REDUCTION,
        lines="        sums.bring_home(sums.sums)\n",
        without="",
        seen_by=(
            f"{TEST_LEDGER}::test_what_was_whole_in_one_generation_is_what_the_next_one_sums",
        ),
    ),
    Mutation(
        guard="only what holds every microbatch once is whole",
        path=REDUCTION,
        lines="if value is not None and num_counted == self._num_microbatches:",
        without="if value is not None:",
        seen_by=(f"{TEST_LEDGER}::TestSteps",),
    ),
    Mutation(
        guard="only what holds every microbatch once is whole",
        path=REDUCTION,
        lines="(row == bucket.run.whole_count)",
        without="(row >= bucket.run.whole_count)",
        seen_by=(f"{TEST_LEDGER}::test_what_holds_a_microbatch_twice_is_not_whole",),
    ),
    Mutation(
        guard="no sum starts before its owners have told what they have whole",
        path=REDUCTION,
        lines="while not self._is_next_unheard(attempt):",
        without="while True:",
        seen_by=(
            f"{TEST_LEDGER}::test_what_was_whole_in_one_generation_is_what_the_next_one_sums",
        ),
    ),
    Mutation(
        guard=(
            "a step's first gradient takes the place of what is there, and what gets none is zero"
        ),
        path=ACCUMULATE,
        lines="add(gradient, is_first=(layer, name) in outdated)",
        without="add(gradient)",
        seen_by=(f"{TEST_NUMERICS}::test_a_step_begins_with_nothing_of_the_one_before",),
    ),
    Mutation(
        guard=(
            "a step's first gradient takes the place of what is there, and what gets none is zero"
        ),
        path=ACCUMULATE,
        lines="                outdated.discard((layer, name))\n",
        without="",
        seen_by=(f"{TEST_NUMERICS}::test_a_step_begins_with_nothing_of_the_one_before",),
    ),
    Mutation(
        guard=(
            "a step's first gradient takes the place of what is there, and what gets none is zero"
        ),
        path=ACCUMULATE,
        lines="            self._places[key].zero_()\n",
        without="",
        seen_by=(f"{TEST_NUMERICS}::test_what_nothing_was_added_to_is_zero",),
    ),
    Mutation(
        guard=(
            "a step's first gradient takes the place of what is there, and what gets none is zero"
        ),
        path=REDUCTION,
        lines="            self._sums.settle(bucket.layers)\n",
        without="",
        seen_by=(f"{TEST_GRADIENTS}::test_a_follower_adds_nothing_of_the_step_before",),
    ),
    Mutation(
        guard=(
            "groups that could not be made keep nothing of the pass in which that was found out"
        ),
        path=STEP,
        lines="error.with_traceback(None)  # `_reduce` meets it again",
        without="pass  # `_reduce` meets it again",
        seen_by=(f"{TEST_GRADIENTS}::test_groups_that_could_not_be_made_keep_nothing_of_a_pass",),
    ),
    Mutation(
        guard="nothing with a gradient out of range is whole",
        path=REDUCTION,
        lines=" * self._sums.in_range(piece.layer)",
        without="",
        seen_by=(f"{TEST_GRADIENTS}::test_a_sum_with_a_gradient_out_of_range_is_not_whole",),
    ),
    Mutation(
        guard=(
            "what the last layer completes, and with it the sum of a tied layer, "
            "waits for the end of the pass"
        ),
        path=LAUNCHES,
        lines="bool(self._incomplete) and ",
        without="",
        seen_by=(
            f"{TEST_LAUNCHES}::test_all_ranks_start_in_one_order_and_nobody_waits_for_ever",
            f"{TEST_LAUNCHES}::test_what_the_last_layer_completes_waits_for_the_end_of_the_pass",
        ),
    ),
    Mutation(
        guard="a new attempt agrees on everything anew, and keeps what is computed",
        path=LEDGER,
        lines="        self.in_flight.clear()\n",
        without="",
        seen_by=(
            f"{TEST_LEDGER}::test_a_new_attempt_keeps_what_is_computed_and_nothing_of_the_sums",
        ),
    ),
    Mutation(
        guard="a new attempt agrees on everything anew, and keeps what is computed",
        path=LEDGER,
        lines="        self.complete.clear()\n",
        without="",
        seen_by=(
            f"{TEST_LEDGER}::test_a_new_attempt_keeps_what_is_computed_and_nothing_of_the_sums",
        ),
    ),
    Mutation(
        guard="a new attempt agrees on everything anew, and keeps what is computed",
        path=LEDGER,
        lines="        self.complete.clear()\n",
        without="        self.complete.clear()\n        self.finished.clear()\n",
        seen_by=(
            f"{TEST_LEDGER}::test_a_new_attempt_keeps_what_is_computed_and_nothing_of_the_sums",
            f"{TEST_LEDGER}::TestSteps",
        ),
    ),
)

PASSES = (
    Mutation(
        guard="a halted engine ends its pass between two layers",
        path=PIPELINE,
        lines="stage(inputs, Microbatch(step=step, index=microbatch), self._check_halt)",
        without="stage(inputs, Microbatch(step=step, index=microbatch))",
        seen_by=(
            f"{TEST_GRADIENTS}::test_a_pass_that_nobody_needs_any_more_ends_between_two_layers",
        ),
    ),
    Mutation(
        guard="a halted engine ends its pass between two layers",
        path=PIPELINE,
        lines="sums.collect(stage.leaves, self._check_halt)",
        without="sums.collect(stage.leaves)",
        seen_by=(
            f"{TEST_GRADIENTS}::test_a_pass_that_nobody_needs_any_more_ends_between_two_layers",
        ),
    ),
    Mutation(
        guard="lost microbatches are dealt out by the speed measured",
        path=FINISH_STEP,
        lines="    if all(measured):\n        return measured\n",
        without="",
        seen_by=(f"{TEST_WHO_KEEPS}::test_what_is_lost_goes_to_those_that_are_quick",),
    ),
    Mutation(
        guard="lost microbatches are dealt out by the speed measured",
        path=FROM_AGENT,
        lines="        microbatch_seconds=message.microbatch_seconds,\n",
        without="",
        seen_by=(f"{TEST_STEP_MESSAGES}::test_a_fenced_engine_says_what_a_microbatch_takes",),
    ),
    Mutation(
        guard="lost microbatches are dealt out by the speed measured",
        path=DIRECTIVES,
        lines="            microbatch_seconds=ledger.usual_microbatch_seconds,\n",
        without="",
        seen_by=(
            f"{TEST_IN_STEP}::test_a_whole_pipeline_finishes_the_step_of_a_broken_one[forward]",
        ),
    ),
    Mutation(
        guard="that speed is the quickest step's of several",
        path=LEDGER,
        lines="[-NUM_RECENT_STEPS:]",
        without="[-1:]",
        seen_by=(f"{TEST_LEDGER}::test_one_slow_step_says_nothing_of_a_place_and_several_do",),
    ),
    Mutation(
        guard="that speed is the quickest step's of several",
        path=LEDGER,
        lines="[-NUM_RECENT_STEPS:]",
        without="",
        seen_by=(f"{TEST_LEDGER}::test_one_slow_step_says_nothing_of_a_place_and_several_do",),
    ),
    Mutation(
        guard="no pipeline is given more than its memory holds",
        path=FINISH_STEP,
        lines="if share.room > 0",
        without="",
        seen_by=(f"{TEST_WHO_KEEPS}::test_no_pipeline_is_given_more_than_fits_in_its_memory",),
    ),
    Mutation(
        guard="no pipeline is given more than its memory holds",
        path=FINISH_STEP,
        lines="if len(given[index]) < shares[index].room:",
        without="if True:",
        seen_by=(f"{TEST_WHO_KEEPS}::test_the_pool_is_spread_so_that_the_last_one_is_ready_first",),
    ),
    Mutation(
        guard="no pipeline is given more than its memory holds",
        path=FINISH_STEP,
        lines="return kept if _have_room(kept, placement.plan, requirements) else ()",
        without="return kept",
        seen_by=(f"{TEST_WHO_KEEPS}::test_no_pipeline_is_given_more_than_fits_in_its_memory",),
    ),
)

MUTATIONS = (*EXCHANGES, *SUMS, *PASSES)
