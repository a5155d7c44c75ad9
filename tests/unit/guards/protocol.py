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
from planaria_coordinator.domain.job.signals import NodesGranted
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement import replicas
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.recovery import finish_step, handover, lost_engines
from planaria_coordinator.domain.recovery.transition import Phase, Transition
from unit.coordinator.engine_state import Rules
from unit.coordinator.protocol_cluster import DISPLACING, DRAINING, EVEN, JOINING, UNEVEN
from unit.coordinator.protocol_model import Model
from unit.coordinator.protocol_search import search
from unit.guards.guard import Guard, Remove, swap


def searching(**model: Any) -> Callable[[], None]:
    """The search through all states of a model; one loss, unless it says something else."""

    def find_no_violation() -> None:
        search(Model(**{"num_faults": 1, "num_crashes": 0, **model}))

    return find_no_violation


def engines_without(name: str) -> Remove:
    """Switch off what the model's engines keep to."""
    return lambda patch: patch.setattr(Rules, name, False)


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


decide_on_the_first_report = _await_all_but("quiesce")
do_not_wait_for_stragglers = _await_all_but("roll_forward")


def switch_when_the_first_is_ready(patch: pytest.MonkeyPatch) -> None:
    awaits = Turn.is_awaiting
    swap(
        patch,
        awaits,
        lambda turn, *kinds: kinds != ("activate",) and awaits(turn, *kinds),
    )


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


keep_whatever_was_applied = _see_reports_as(
    lambda report: replace(report, applied_generation=9, kept_microbatches=(0, 1))
)
keep_parked_pipelines = _see_reports_as(
    lambda report: replace(
        report,
        park_time=None,
        applied_generation=report.applied_generation or 9,
        kept_microbatches=report.kept_microbatches or (0,),
    )
)


def go_on_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A straggler of a commit after which all park is taken to begin the next step."""
    kept = finish_step.kept_pipelines
    swap(patch, kept, lambda *args, **_: kept(*args))


def compute_only_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    def nothing(pool: Sequence[int], shares: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        return ((),) * len(shares)

    swap(patch, finish_step.spread, nothing)


def forget_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A pipeline is given other microbatches than those in its gradients."""
    swap(patch, finish_step._complete, lambda kept, *_: ((0,),) * len(kept))


def believe_nobody_has_switched(patch: pytest.MonkeyPatch) -> None:
    swap(patch, replicas.has_switched, lambda *_: False)


def forget_the_old_plan(patch: pytest.MonkeyPatch) -> None:
    """The engines that voted for the commit at which the plan changes are not found any more."""
    find = replicas.placement_of
    swap(patch, find, lambda record, placements: find(record, placements[-1:]))


def keep_every_pipeline(patch: pytest.MonkeyPatch) -> None:
    def unchanged(running: Placement, target: Placement) -> Placement:
        return replace(target, first_generations=(running.generation,) * len(target.stage_engines))

    swap(patch, handover._grown_from, unchanged)


def begin_again_online(patch: pytest.MonkeyPatch) -> None:
    """As if nobody could have switched when the coordinator comes back."""

    def is_online(self: Transition) -> bool:
        online = (Phase.PREPARING, Phase.STAGING, Phase.SWITCHING)
        return self.plans_online or self.phase in online

    swap(patch, Transition.is_online, property(is_online))


def disregard_joiners(patch: pytest.MonkeyPatch) -> None:
    concerns = lost_engines._concerns

    def concerns_others(turn: Turn, gone: Iterable[str]) -> bool:
        return turn.transition.phase is not Phase.SWITCHING and concerns(turn, gone)

    swap(patch, concerns, concerns_others)


def let_nodes_in_at_any_moment(patch: pytest.MonkeyPatch) -> None:
    """Nodes that are granted replace whatever change is under way."""
    granted = user_requests.nodes_granted

    def whatever_happens(turn: Turn, signal: NodesGranted) -> None:
        transition = turn.run.transition
        if transition is not None and transition.phase is not Phase.PREPARING:
            turn.change(transition=None)
        granted(turn, signal)

    swap(patch, granted, whatever_happens)


def go_on_when_an_engine_is_ready(patch: pytest.MonkeyPatch) -> None:
    """As if any change under way were still the one that the engine was started for."""
    check = preparing.check_prepared

    def in_any_phase(turn: Turn) -> None:
        if turn.run.transition is not None:
            turn.note(phase=Phase.PREPARING)
        check(turn)

    swap(patch, check, in_any_phase)


def start_engines_first(patch: pytest.MonkeyPatch) -> None:
    """A loss while engines start is not acted on."""
    recover = lost_engines._open_recovery

    def unless_engines_start(turn: Turn, *args: Any) -> None:
        transition = turn.run.transition
        if transition is None or transition.phase is not Phase.PREPARING:
            recover(turn, *args)

    swap(patch, recover, unless_engines_start)


PROTOCOL = (
    Guard(
        name="the coordinator decides when all have reported",
        remove=decide_on_the_first_report,
        scenarios=(searching(cluster=UNEVEN),),
    ),
    Guard(
        name="engines roll forward before anything else",
        remove=do_not_roll_forward,
        scenarios=(searching(cluster=UNEVEN),),
    ),
    Guard(
        name="the coordinator waits for stragglers",
        remove=do_not_wait_for_stragglers,
        scenarios=(searching(cluster=EVEN),),
    ),
    Guard(
        name="pipelines keep a step only of the same generation",
        remove=keep_whatever_was_applied,
        scenarios=(searching(num_faults=2, cluster=EVEN),),
    ),
    Guard(
        name="only pipelines that compute keep a step",
        remove=keep_parked_pipelines,
        scenarios=(searching(num_faults=2, cluster=EVEN),),
        is_slow=True,
    ),
    Guard(
        name="lost microbatches are computed again",
        remove=compute_only_what_is_kept,
        scenarios=(searching(cluster=UNEVEN),),
    ),
    Guard(
        name="microbatches that a pipeline keeps are its own",
        remove=forget_what_is_kept,
        scenarios=(searching(cluster=UNEVEN),),
    ),
    Guard(
        name="an Activate ends the sums of aborted attempts",
        remove=engines_without("void_sums"),
        scenarios=(searching(num_faults=2, reorders=True, cluster=EVEN),),
    ),
    Guard(
        name="an engine that has reported neither sums nor votes",
        remove=engines_without("fence"),
        scenarios=(searching(num_faults=2, reorders=True, cluster=UNEVEN),),
    ),
    Guard(
        name="gradients of broken pipelines are cleared",
        remove=engines_without("clear_broken"),
        scenarios=(searching(cluster=UNEVEN),),
    ),
    Guard(
        name="followers vote",
        remove=engines_without("followers_sum"),
        scenarios=(searching(num_faults=2, reorders=True, cluster=UNEVEN),),
    ),
    Guard(
        name="engines refuse directives of older generations",
        remove=engines_without("refuse_stale"),
        scenarios=(searching(num_faults=2, reorders=True, cluster=UNEVEN),),
    ),
    Guard(
        name="reports say which plan is in force",
        remove=believe_nobody_has_switched,
        scenarios=(searching(cluster=DISPLACING, drains=True),),
        is_slow=True,
    ),
    Guard(
        name="stragglers of a handover are those of the old plan",
        remove=forget_the_old_plan,
        scenarios=(searching(cluster=DRAINING, drains=True),),
    ),
    Guard(
        name="all are ready before anybody switches",
        remove=switch_when_the_first_is_ready,
        scenarios=(searching(cluster=DRAINING, drains=True),),
    ),
    Guard(
        name="only unchanged pipelines are kept",
        remove=keep_every_pipeline,
        scenarios=(searching(cluster=DRAINING, drains=True),),
    ),
    Guard(
        name="a coordinator that restarts after Switch collects everybody",
        remove=begin_again_online,
        scenarios=(searching(num_faults=0, num_crashes=1, cluster=DRAINING, drains=True),),
        is_slow=True,
    ),
    Guard(
        name="a lost joiner counts once Switch was sent",
        remove=disregard_joiners,
        scenarios=(searching(cluster=DRAINING, drains=True),),
    ),
    Guard(
        name="after a commit that ends the plan nobody goes on",
        remove=go_on_after_the_commit,
        scenarios=(searching(num_failures=1, cluster=DRAINING, drains=True),),
        is_slow=True,
    ),
    Guard(
        name="a handover needs the mark of all",
        remove=engines_without("all_hold_the_mark"),
        scenarios=(searching(cluster=DRAINING, drains=True),),
    ),
    Guard(
        name="layers are followed until the commit",
        remove=engines_without("follow_to_the_commit"),
        scenarios=(searching(cluster=DRAINING, drains=True),),
    ),
    Guard(
        name="old layers are kept until the first commit",
        remove=engines_without("keep_old_layers"),
        scenarios=(searching(cluster=DRAINING, drains=True),),
    ),
    Guard(
        name="a joiner has the record of the commit",
        remove=engines_without("joiner_is_witness"),
        scenarios=(searching(cluster=DRAINING, drains=True),),
        is_slow=True,
    ),
    Guard(
        name="nobody joins in the middle of a change",
        remove=let_nodes_in_at_any_moment,
        scenarios=(searching(cluster=JOINING),),
    ),
    Guard(
        name="an engine that becomes ready ends no other change",
        remove=go_on_when_an_engine_is_ready,
        scenarios=(searching(cluster=JOINING),),
    ),
    Guard(
        name="a loss counts while engines start",
        remove=start_engines_first,
        scenarios=(searching(cluster=JOINING),),
    ),
    Guard(
        name="a decision outlives the coordinator",
        remove=forget_decisions_in_a_crash,
        scenarios=(searching(num_crashes=1, cluster=UNEVEN),),
    ),
)
