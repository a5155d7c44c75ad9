"""A step's next run, begun in the room that the end of the present one leaves."""

from unit.mutations.mutation import Mutation

EXCHANGE_LINE = "worker/planaria_worker/engine/step/commit_link.py"
PIPELINE = "worker/planaria_worker/engine/step/pipeline_stage.py"
PLAN_VIEW = "worker/planaria_worker/engine/plan/plan_view.py"
STEP = "worker/planaria_worker/engine/step/training_step.py"

_TESTS = "tests/unit/engine/test_running_ahead.py"
_ANY_MOMENT = f"{_TESTS}::test_whenever_each_stage_is_told_and_told_again"
_TWO_STAGES = f"{_TESTS}::test_whenever_each_of_two_stages_is_told"
_UNTOLD = f"{_TESTS}::test_who_is_told_does_not_wait_for_a_stage_that_is_not"
_SAME = f"{_TESTS}::test_what_was_begun_is_what_comes_next"

MUTATIONS = (
    Mutation(
        guard="who begins the next run waits for no stage that does not know of it",
        path=PIPELINE,
        lines=" or not self._has_input():",
        without=":",
        seen_by=(f"{_UNTOLD}[MemoryGroup]",),
    ),
    Mutation(
        guard="who begins the next run waits for no stage that does not know of it",
        path=PIPELINE,
        lines="self._begin_to_send(self._sends_ahead, self",
        without="self._begin_to_send(self._sends, self",
        seen_by=(f"{_UNTOLD}[SlowGroup]",),
    ),
    Mutation(
        guard="who begins the next run waits for no stage that does not know of it",
        path=EXCHANGE_LINE,
        lines="while self._under_way and self._under_way[0].is_over:",
        without="while self._under_way:",
        seen_by=(f"{_UNTOLD}[SlowGroup]",),
    ),
    Mutation(
        guard="the next run takes no more memory than one run of both",
        path=PIPELINE,
        lines="while len(self._started) < self._room_ahead and",
        without="while",
        seen_by=(f"{_TWO_STAGES}[MemoryGroup]",),
    ),
    Mutation(
        guard="what was received for the next run stays until its backward pass",
        path=PIPELINE,
        lines="        self._ledger = ledger\n        self._sends.extend",
        without="        self._ledger, self._num_received = ledger, 0\n        self._sends.extend",
        seen_by=(_ANY_MOMENT,),
    ),
    Mutation(
        guard="what was begun is what comes next",
        path=PIPELINE,
        lines="not is_of_step or ",
        without="",
        seen_by=(_SAME,),
    ),
    Mutation(
        guard="what was begun is what comes next",
        path=PIPELINE,
        lines=" or [*microbatches[: len(started)]] != started",
        without="",
        seen_by=(_SAME,),
    ),
    Mutation(
        guard="nothing is ahead of an evaluation",
        path=PIPELINE,
        lines=" < self._room_ahead and not self._is_evaluating:",
        without=" < self._room_ahead:",
        seen_by=(f"{_TESTS}::test_nothing_is_ahead_of_an_evaluation",),
    ),
    Mutation(
        guard="activations that are sent ahead are not taken for messages of the exchange",
        path=PLAN_VIEW,
        lines='exchange_group=_line(pipelines, row, "exchange")',
        without="exchange_group=forward_group",
        seen_by=(f"{_TWO_STAGES}[MemoryGroup]",),
    ),
    Mutation(
        guard="an attempt that is void whatever comes is waited for by nobody who knows",
        path=STEP,
        lines="    if place.upcoming:\n",
        without="    if False:\n",
        seen_by=(f"{_TESTS}::test_the_pipeline_stays_full",),
    ),
    Mutation(
        guard="what is left of an attempt that was called off is dropped before the next",
        path=EXCHANGE_LINE,
        lines="            self._num_unread[neighbour] += 1\n",
        without="",
        seen_by=(
            f"{_TWO_STAGES}[MemoryGroup]",
            "tests/unit/engine/test_attempts.py"
            "::test_every_attempt_sends_one_message_up_and_one_down",
        ),
    ),
)
