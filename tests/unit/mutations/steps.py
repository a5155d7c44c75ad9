"""What keeps a step whole: its sums, and its commit."""

from unit.mutations.mutation import Mutation

MUTATIONS = (
    Mutation(
        guard="every layer's sum holds every microbatch once",
        path="worker/planaria_worker/engine/exchange.py",
        lines="if incomplete.size:",
        without="if False:",
        seen_by=(
            "tests/unit/engine/test_exchange.py"
            "::test_invariant_1_one_missing_or_repeated_microbatch_anywhere_stops_the_commit",
        ),
    ),
    Mutation(
        guard="every loss is reported once",
        path="worker/planaria_worker/engine/exchange.py",
        lines="not is_reported.all() or ",
        without="",
        seen_by=(
            "tests/unit/engine/test_exchange.py"
            "::test_invariant_1_a_loss_that_is_missing_or_reported_twice_stops_the_commit",
        ),
    ),
)
