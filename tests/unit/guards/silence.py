"""Remove the guards of nodes that are silent."""

from dataclasses import replace
from typing import Any

import pytest

from planaria_coordinator.application.agents.node_registry import NodeRegistry
from planaria_coordinator.application.supervision import Supervisor
from planaria_coordinator.domain.engines import silence
from planaria_coordinator.domain.engines.silence import Judgement, Sight
from unit.coordinator.engines import (
    test_silence_of_many,
    test_silence_search,
    test_silent_nodes,
)
from unit.guards.guard import guard, swap

SEARCH = test_silence_search.test_who_is_well_is_never_lost_and_who_is_gone_is_found


@guard(
    "nobody is lost because the coordinator itself may be cut off",
    SEARCH,
    test_silence_of_many.test_nodes_on_which_engines_start_are_not_lost_because_many_are_silent,
)
def spare_nobody(patch: pytest.MonkeyPatch) -> None:
    swap(patch, silence._spared, lambda quiet, num_holders, holders_of_layers: {})


@guard(
    "a silent node that others reach is not lost",
    SEARCH,
    test_silent_nodes.test_a_node_that_others_reach_is_silent_and_not_lost,
)
def believe_nobody_who_reaches_it(patch: pytest.MonkeyPatch) -> None:
    swap(patch, silence._Case._is_reached, lambda self, inquiry: False)


@guard(
    "after a start silence counts from the first agent that is heard",
    test_silent_nodes.test_after_a_start_silence_counts_from_the_first_agent_that_is_back,
)
def count_from_the_start(patch: pytest.MonkeyPatch) -> None:
    swap(patch, NodeRegistry.is_blind, property(lambda self: False))

    def heard(self: NodeRegistry, entry: Any) -> None:
        entry.last_seen_seconds = self._clock.monotonic()
        entry.inquiry = None

    swap(patch, NodeRegistry.heard, heard)


@guard(
    "an agent has its lease from the end of its session on",
    test_silent_nodes.test_sessions_that_end_after_a_silence_leave_agents_their_lease,
)
def count_the_lease_from_the_last_heartbeat(patch: pytest.MonkeyPatch) -> None:
    lease = silence._Case._is_lease_over
    assert isinstance(lease, property)
    is_over = lease.fget
    assert is_over is not None

    def since_heartbeat(self: silence._Case) -> bool:
        return bool(is_over(replace(self, sight=replace(self.sight, ended_seconds=None))))

    swap(patch, lease, property(since_heartbeat))
    swap(patch, silence.sees_nobody, lambda now_seconds, sights, patience: False)
    swap(patch, silence._spared, lambda quiet, num_holders, holders_of_layers: {})


@guard(
    "engines on silent nodes are not given up for not answering",
    test_silent_nodes.test_a_fence_waits_for_nodes_of_which_nothing_is_known,
)
def expect_answers_of_the_silent(patch: pytest.MonkeyPatch) -> None:
    judge = silence.judge

    def nobody_is_absent(*arguments: Any, **options: Any) -> Judgement:
        judgement = judge(*arguments, **options)
        judgement.absent.clear()
        return judgement

    swap(patch, judge, nobody_is_absent)


@guard(
    "while many are silent, one alone does not say that they are lost",
    test_silence_of_many.test_who_accuses_everybody_is_not_the_only_one_that_is_asked,
)
def believe_one_witness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(silence, "NUM_WITNESSES", 1)


@guard(
    "when all were silent, others have time to come back after the first",
    test_silence_of_many.test_the_first_that_is_back_says_nothing_of_the_others_yet,
)
def never_lose_sight(patch: pytest.MonkeyPatch) -> None:
    swap(patch, silence.sees_nobody, lambda now_seconds, sights, patience: False)


@guard(
    "ends of connections make nobody lost while many are silent, or the last holder of layers",
    test_silence_of_many.test_a_firewall_that_ends_every_connection_ends_no_job,
    test_silence_of_many.test_the_only_holder_of_layers_is_not_lost_before_others_were_asked,
)
def believe_ends_of_connections(patch: pytest.MonkeyPatch) -> None:
    judge = silence.judge

    def lose_all_that_seem_ended(
        now_seconds: float, sights: dict[str, Sight], *arguments: Any, **options: Any
    ) -> Judgement:
        judgement = judge(now_seconds, sights, *arguments, **options)
        ended = [node_id for node_id, sight in sights.items() if sight.seems_ended]
        judgement.lost.update(dict.fromkeys(ended, silence.Loss(reason="it ended")))
        return judgement

    swap(patch, judge, lose_all_that_seem_ended)


@guard(
    "a job's progress is judged by those that are heard",
    test_silence_of_many.test_a_frozen_majority_does_not_hold_a_job_up_for_ever,
)
def judge_no_progress(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Supervisor._watch_progress, lambda self, actor, now: None)


@guard(
    "a change of the plan does not wait for ever for silent nodes whose machines answer",
    test_silence_of_many.test_a_recovery_does_not_wait_for_ever_for_a_frozen_majority,
)
def wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Supervisor._waits_for_silent, lambda self, run, now: False)
