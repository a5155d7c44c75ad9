"""Remove the guards of what engines say of their links."""

from collections.abc import Collection, Iterable, Iterator

import pytest

from planaria_coordinator.application.agents.agent_session import AgentSession
from planaria_coordinator.domain.engines import links
from planaria_coordinator.domain.engines.links import Edge
from planaria_coordinator.domain.job import cordons, signals
from planaria_coordinator.domain.job.signals import Signal
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.recovery import broken_links, handover, lost_engines, overdue
from planaria_worker.engine.recovery import stalled_messages
from unit.coordinator.engines import test_link_search, test_links
from unit.coordinator.recovery import (
    test_broken_links,
    test_broken_links_in_changes,
    test_left_out_nodes,
)
from unit.engine.recovery import test_stalled_messages
from unit.guards.guard import guard, swap

ONE_LIAR = test_link_search.test_one_that_lies_stops_nobody_that_is_well_and_hides_nobody_that_ended
TWO_LIARS = test_link_search.test_two_that_lie_do_not_stop_all_others


@guard(
    "the word of one engine stops no other",
    test_broken_links.test_who_accuses_all_others_is_left_out_itself,
    ONE_LIAR,
)
def believe_anybody(patch: pytest.MonkeyPatch) -> None:
    swap(patch, broken_links._looks_ended, lambda turn, engine_id, ends: True)


@guard(
    "who accuses is believed only where it cannot be at fault itself",
    test_links.test_a_process_has_ended_if_enough_say_so,
    test_links.test_two_that_accuse_all_others_are_not_believed,
    TWO_LIARS,
)
def believe_the_majority(patch: pytest.MonkeyPatch) -> None:
    def looks_ended(engine_id: str, failed: Collection[links.FailedLink], *_others: object) -> bool:
        return sum(link.peer_engine_id == engine_id for link in failed) > 1

    swap(patch, links.looks_ended, looks_ended)


@guard(
    "who had another left out is believed less of the next",
    test_links.test_those_who_had_another_left_out_are_believed_less,
    TWO_LIARS,
)
def forget_who_was_left_out(patch: pytest.MonkeyPatch) -> None:
    swap(patch, links._sharing_an_end, lambda earlier, edges: [])


@guard(
    "only links that steps use count",
    test_broken_links.test_a_link_that_no_step_uses_disturbs_nobody,
    ONE_LIAR,
)
def count_all_links(patch: pytest.MonkeyPatch) -> None:
    swap(patch, broken_links._in_use, lambda run, failed, placements: list(failed))


@guard("who seems to have ended is left out before who says so", ONE_LIAR)
def prefer_nobody(patch: pytest.MonkeyPatch) -> None:
    swap(patch, broken_links._preferred, lambda turn, lately, absent_nodes: [])


@guard(
    "what an engine says of a link is acted on, shortly after",
    test_broken_links.test_others_have_time_to_say_what_stalls_for_them,
    ONE_LIAR,
)
def do_nothing_about_failed_links(patch: pytest.MonkeyPatch) -> None:
    swap(patch, broken_links._wait_for_others, lambda turn, *_links, **_options: None)


@guard(
    "what only others saw is no strike",
    test_left_out_nodes.test_whom_others_saw_end_is_never_refused_for_it,
)
def strike_whom_others_saw_end(patch: pytest.MonkeyPatch) -> None:
    def strike(turn: Turn, node_id: str, *_others: object, **_options: object) -> None:
        lost_engines._strike(turn, node_id)

    patch.setattr(lost_engines, "cordon", strike)


@guard(
    "a node joins again when it is known what ailed it",
    test_left_out_nodes.test_whose_agent_says_that_it_ended_joins_again_at_once,
    test_left_out_nodes.test_a_lost_node_may_join_as_soon_as_it_is_back,
)
def leave_out_whoever_is_known_to_have_ended(patch: pytest.MonkeyPatch) -> None:
    for lift in (cordons.fault_found, cordons.forget_cordon):
        swap(patch, lift, lambda turn, node_id: None)


@guard(
    "a plan over a link that stays broken is not made again",
    test_broken_links.test_a_single_broken_link_costs_one_of_its_ends,
    test_broken_links.test_whom_nothing_reaches_is_left_out,
)
def leave_nobody_out(patch: pytest.MonkeyPatch) -> None:
    swap(patch, broken_links.choose_to_leave_out, lambda turn, **_options: None)


@guard(
    "the fewest nodes are left out",
    test_broken_links.test_who_accuses_all_others_is_left_out_itself,
    test_links.test_of_equally_many_those_are_left_out_that_are_preferred,
    TWO_LIARS,
)
def leave_out_whoever_was_named(patch: pytest.MonkeyPatch) -> None:
    def covers(edges: Collection[Edge], suspects: Iterable[str]) -> Iterator[tuple[str, ...]]:
        yield tuple(node_id for node_id in suspects if any(node_id in edge for edge in edges))

    swap(patch, links._smallest_covers, covers)


@guard(
    "a job leaves out nobody without whom it has no plan",
    test_broken_links.test_a_job_that_cannot_do_without_waits_and_says_why,
    ONE_LIAR,
)
def leave_out_the_last(patch: pytest.MonkeyPatch) -> None:
    swap(patch, broken_links.goes_without, lambda run, absent_nodes: lambda nodes: True)


@guard(
    "nobody is parked for a plan over a broken link",
    test_broken_links_in_changes.test_a_joining_node_that_others_cannot_reach_disturbs_nobody,
    test_broken_links_in_changes.test_a_training_node_without_which_a_plan_cannot_be_staged_is_left_out,
)
def park_everybody_for_a_broken_link(patch: pytest.MonkeyPatch) -> None:
    swap(patch, handover._choose_to_leave_out, lambda turn: None)


@guard(
    "what others say does not end the only replica of a layer",
    test_broken_links.test_what_others_say_does_not_end_the_only_replica_of_a_layer,
)
def believe_one_of_the_last(patch: pytest.MonkeyPatch) -> None:
    swap(patch, lost_engines.is_spare, lambda turn, node_id: True)


@guard(
    "the only holder of a layer is asked again",
    test_broken_links.test_the_only_holder_of_a_layer_is_asked_again_when_it_does_not_answer,
)
def stop_the_last_that_is_slow(patch: pytest.MonkeyPatch) -> None:
    swap(patch, overdue._is_asked_again, lambda turn, pending: False)


@guard(
    "unreachable peers show which end of a link failed",
    test_broken_links.test_unreachable_peers_show_which_end_it_was,
)
def count_links_that_are_given_up_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broken_links, "_UNREACHABLE_LATELY_SECONDS", -1.0)


@guard(
    "losses that are seen together open one generation",
    test_broken_links.test_losses_that_are_seen_together_open_one_generation,
)
def take_losses_one_by_one(patch: pytest.MonkeyPatch) -> None:
    def one_by_one(seen: Iterable[Signal]) -> Iterator[Signal]:
        yield from seen

    swap(patch, signals.seen_together, one_by_one)


@guard(
    "an agent that has an engine contradicts who saw it end",
    test_broken_links.test_a_report_that_an_agent_contradicts_is_forgotten,
)
def remember_what_was_contradicted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgentSession, "_contradict", lambda self, entry: None)


@guard(
    "time in which nobody looked accuses nobody",
    test_stalled_messages.test_time_in_which_nobody_looked_does_not_count,
)
def judge_by_the_clock_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stalled_messages, "_LEAST_LOOKS", 1)
