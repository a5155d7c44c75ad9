"""Remove the guards of the protocol; the search through all orders of events must find a violation.

Most are functions of the coordinator. The engines of the search are a model: what they keep to are
`Rules`, switched off one at a time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from planaria_coordinator.domain.engines import preparing
from planaria_coordinator.domain.engines.outcome import FenceReport
from planaria_coordinator.domain.job import user_requests
from planaria_coordinator.domain.job.signals import HoldersReturned, NodesGranted
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement import absent_holders, replicas
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.recovery import (
    finish_step,
    handover,
    lost_engines,
    unreachable_holders,
)
from planaria_coordinator.domain.recovery.transition import Phase, Transition
from unit.coordinator.protocol.cluster import DISPLACING, DRAINING, EVEN, JOINING, UNEVEN
from unit.coordinator.protocol.engine_state import Rules
from unit.coordinator.protocol.model import Model
from unit.coordinator.protocol.search import search
from unit.coordinator.protocol.takeover import Guards, TakeoverModel
from unit.coordinator.protocol.test_returning_search import search_what_follows_a_redone_step
from unit.guards.guard import Remove, guard, swap


def searching(**model: Any) -> Callable[[], None]:
    """The search through all states of a model; one loss, unless it says something else."""

    def find_no_violation() -> None:
        search(TakeoverModel(**{"num_faults": 1, "num_crashes": 0, **model}))

    return find_no_violation


uneven = searching(cluster=UNEVEN)
two_losses = searching(num_faults=2, cluster=EVEN)
reordered = searching(num_faults=2, reorders=True, cluster=UNEVEN)
draining = searching(cluster=DRAINING, drains=True)
joining = searching(cluster=JOINING)


def engines_without(name: str) -> Remove:
    """Switch off what the model's engines keep to."""
    return lambda patch: patch.setattr(Rules, name, False)


@guard("a decision outlives the coordinator", searching(num_crashes=1, cluster=UNEVEN))
def forget_decisions_in_a_crash(patch: pytest.MonkeyPatch) -> None:
    never = property(lambda self: False, lambda self, value: None)
    patch.setattr(Model, "keeps_stored", never, raising=False)


def _await_all_but(*ignored: str) -> Remove:
    def remove(patch: pytest.MonkeyPatch) -> None:
        awaits = Turn.is_awaiting

        def awaits_others(turn: Turn, *kinds: str) -> bool:
            return not set(ignored) & set(kinds) and awaits(turn, *kinds)

        swap(patch, awaits, awaits_others)

    return remove


decide_on_the_first_report = guard("the coordinator decides when all have reported", uneven)(
    _await_all_but("quiesce")
)
do_not_wait_for_stragglers = guard("the coordinator waits for stragglers", searching(cluster=EVEN))(
    _await_all_but("roll_forward")
)


@guard("all are ready before anybody switches", draining)
def switch_when_the_first_is_ready(patch: pytest.MonkeyPatch) -> None:
    awaits = Turn.is_awaiting
    swap(
        patch,
        awaits,
        lambda turn, *kinds: kinds not in (("activate",), ("stage_plan",)) and awaits(turn, *kinds),
    )


@guard("engines roll forward before anything else", uneven)
def do_not_roll_forward(patch: pytest.MonkeyPatch) -> None:
    swap(patch, replicas.late_engines, lambda *_: ())


def _see_reports_as(change: Callable[[FenceReport], FenceReport]) -> Remove:
    def remove(patch: pytest.MonkeyPatch) -> None:
        kept = finish_step.kept_pipelines

        def kept_by_other_reports(
            placement: Placement, reports: Mapping[str, FenceReport], *rest: Any, **named: Any
        ) -> Any:
            return kept(placement, {e: change(r) for e, r in reports.items()}, *rest, **named)

        swap(patch, kept, kept_by_other_reports)

    return remove


keep_whatever_was_applied = guard("pipelines keep a step only of the same generation", two_losses)(
    _see_reports_as(lambda report: replace(report, applied_generation=9, kept_microbatches=(0, 1)))
)
keep_parked_pipelines = guard("only pipelines that compute keep a step", two_losses, is_slow=True)(
    _see_reports_as(
        lambda report: replace(
            report,
            park_time=None,
            applied_generation=report.applied_generation or 9,
            kept_microbatches=report.kept_microbatches or (0,),
        )
    )
)


@guard(
    "after a commit that ends the plan nobody goes on",
    searching(num_failures=1, cluster=DRAINING, drains=True),
    is_slow=True,
)
def go_on_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A straggler of a commit after which all park is taken to begin the next step."""
    kept = finish_step.kept_pipelines
    swap(patch, kept, lambda *args, **_: kept(*args))


@guard("lost microbatches are computed again", uneven)
def compute_only_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    def nothing(pool: Sequence[int], shares: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        return ((),) * len(shares)

    swap(patch, finish_step.spread, nothing)


@guard("microbatches that a pipeline keeps are its own", uneven)
def forget_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A pipeline is given other microbatches than those in its gradients."""
    swap(patch, finish_step._complete, lambda kept, *_: ((0,),) * len(kept))


@guard(
    "reports say which plan is in force", searching(cluster=DISPLACING, drains=True), is_slow=True
)
def believe_nobody_has_switched(patch: pytest.MonkeyPatch) -> None:
    swap(patch, replicas.has_switched, lambda *_: False)


@guard("stragglers of a handover are those of the old plan", draining)
def forget_the_old_plan(patch: pytest.MonkeyPatch) -> None:
    """The engines that voted for the commit at which the plan changes are not found any more."""
    find = replicas.placement_of
    swap(patch, find, lambda record, placements: find(record, placements[-1:]))


@guard("only unchanged pipelines are kept", draining)
def keep_every_pipeline(patch: pytest.MonkeyPatch) -> None:
    def unchanged(running: Placement, target: Placement) -> Placement:
        return replace(target, first_generations=(running.generation,) * len(target.stage_engines))

    swap(patch, handover._grown_from, unchanged)


@guard(
    "a coordinator that restarts after Switch collects everybody",
    searching(num_faults=0, num_crashes=1, cluster=DRAINING, drains=True),
    is_slow=True,
)
def begin_again_online(patch: pytest.MonkeyPatch) -> None:
    """As if nobody could have switched when the coordinator comes back."""

    def is_online(self: Transition) -> bool:
        online = (Phase.PREPARING, Phase.STAGING, Phase.SWITCHING)
        return self.plans_online or self.phase in online

    swap(patch, Transition.is_online, property(is_online))


@guard("a lost joiner counts once Switch was sent", draining)
def disregard_joiners(patch: pytest.MonkeyPatch) -> None:
    concerns = lost_engines._concerns

    def concerns_others(turn: Turn, gone: Iterable[str]) -> bool:
        return turn.transition.phase is not Phase.SWITCHING and concerns(turn, gone)

    swap(patch, concerns, concerns_others)


@guard("nobody joins in the middle of a change", joining)
def let_nodes_in_at_any_moment(patch: pytest.MonkeyPatch) -> None:
    """Nodes that are granted replace whatever change is under way."""
    granted = user_requests.nodes_granted

    def whatever_happens(turn: Turn, signal: NodesGranted) -> None:
        transition = turn.run.transition
        if transition is not None and transition.phase is not Phase.PREPARING:
            turn.change(transition=None)
        granted(turn, signal)

    swap(patch, granted, whatever_happens)


@guard("an engine that becomes ready ends no other change", joining)
def go_on_when_an_engine_is_ready(patch: pytest.MonkeyPatch) -> None:
    """As if any change under way were still the one that the engine was started for."""
    check = preparing.check_prepared

    def in_any_phase(turn: Turn) -> None:
        if turn.run.transition is not None:
            turn.note(phase=Phase.PREPARING)
        check(turn)

    swap(patch, check, in_any_phase)


@guard("a loss counts while engines start", joining)
def start_engines_first(patch: pytest.MonkeyPatch) -> None:
    """A loss while engines start is not acted on."""
    recover = lost_engines._open_recovery

    def unless_engines_start(turn: Turn, *args: Any) -> None:
        transition = turn.run.transition
        if transition is None or transition.phase is not Phase.PREPARING:
            recover(turn, *args)

    swap(patch, recover, unless_engines_start)


@guard(
    "a coordinator that was replaced stores nothing, and so sends nothing",
    searching(num_takeovers=1, num_steps=1, cluster=UNEVEN),
)
def store_without_looking_at_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Guards, "check_epoch", False)


@guard(
    "agents take nothing from a coordinator that was replaced",
    searching(num_takeovers=1, num_steps=1, forgets=True, cluster=UNEVEN),
)
def take_directives_of_lower_epochs(patch: pytest.MonkeyPatch) -> None:
    """Only a database that loses what it has stored makes this second guard needed."""
    patch.setattr(Guards, "refuse_lower_epoch", False)


@guard("layers of another history do not count", search_what_follows_a_redone_step)
def trust_whoever_comes_back(patch: pytest.MonkeyPatch) -> None:
    """As if one version had the same bits everywhere, as it has in reproducible mode."""
    swap(patch, absent_holders.engines_of_another_history, lambda *_: frozenset())


@guard("who is unreachable may come back", search_what_follows_a_redone_step)
def give_up_who_is_unreachable(patch: pytest.MonkeyPatch) -> None:
    swap(patch, unreachable_holders.note_unreachable, lambda *_: None)


@guard("who comes back is asked what it has", search_what_follows_a_redone_step)
def dismiss_whoever_comes_back(patch: pytest.MonkeyPatch) -> None:
    def returned(turn: Turn, signal: HoldersReturned) -> None:
        unreachable_holders.dismiss(turn, [e for e in signal.engine_ids if e in turn.run.absent])

    swap(patch, unreachable_holders.holders_returned, returned)


keep_sums_of_aborted_attempts = guard(
    "an Activate ends the sums of aborted attempts",
    searching(num_faults=2, reorders=True, cluster=EVEN),
)(engines_without("void_sums"))
sum_and_vote_after_a_report = guard(
    "an engine that has reported neither sums nor votes", reordered
)(engines_without("fence"))
keep_broken_gradients = guard("gradients of broken pipelines are cleared", uneven)(
    engines_without("clear_broken")
)
leave_followers_out = guard("followers vote", reordered)(engines_without("followers_sum"))
obey_older_generations = guard("engines refuse directives of older generations", reordered)(
    engines_without("refuse_stale")
)
hand_over_before_all_hold_the_mark = guard("a handover needs the mark of all", draining)(
    engines_without("all_hold_the_mark")
)
follow_no_longer_than_the_copy = guard("layers are followed until the commit", draining)(
    engines_without("follow_to_the_commit")
)
drop_old_layers_at_once = guard("old layers are kept until the first commit", draining)(
    engines_without("keep_old_layers")
)
join_without_the_record = guard("a joiner has the record of the commit", draining, is_slow=True)(
    engines_without("joiner_is_witness")
)
