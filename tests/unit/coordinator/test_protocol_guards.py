"""Every guard of the protocol is needed: without it the search finds what must never happen."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from planaria_coordinator.domain.engines import preparing
from planaria_coordinator.domain.engines.outcome import FenceReport
from planaria_coordinator.domain.job import user_requests
from planaria_coordinator.domain.job.signals import NodesGranted
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement import replicas
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.recovery import fencing, finish_step, handover, lost_engines
from planaria_coordinator.domain.recovery.transition import Phase, Transition
from unit.coordinator.protocol_cluster import (
    DISPLACING,
    DRAINING,
    EVEN,
    JOINING,
    UNEVEN,
    Cluster,
)
from unit.coordinator.protocol_model import Model
from unit.coordinator.protocol_search import search
from unit.coordinator.protocol_state import Rules, ViolationError

Remove = Callable[[pytest.MonkeyPatch], None]


def decide_on_the_first_report(patch: pytest.MonkeyPatch) -> None:
    awaits = Turn.is_awaiting
    patch.setattr(
        Turn, "is_awaiting", lambda turn, *kinds: "quiesce" not in kinds and awaits(turn, *kinds)
    )


def do_not_roll_forward(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fencing, "stragglers", lambda *_: ())


def do_not_wait_for_stragglers(patch: pytest.MonkeyPatch) -> None:
    awaits = Turn.is_awaiting
    patch.setattr(
        Turn, "is_awaiting", lambda turn, *kinds: "commit" not in kinds and awaits(turn, *kinds)
    )


def _see_reports_as(change: Callable[[FenceReport], FenceReport]) -> Remove:
    def remove(patch: pytest.MonkeyPatch) -> None:
        kept = finish_step.kept_pipelines
        patch.setattr(
            fencing,
            "kept_pipelines",
            lambda placement, reports, *rest, **named: kept(
                placement, {e: change(report) for e, report in reports.items()}, *rest, **named
            ),
        )

    return remove


keep_whatever_was_applied = _see_reports_as(
    lambda report: replace(report, applied_generation=9, kept_microbatches=(0, 1))
)
keep_whoever_stands_still = _see_reports_as(
    lambda report: replace(
        report,
        park_time=None,
        applied_generation=report.applied_generation or 9,
        kept_microbatches=report.kept_microbatches or (0,),
    )
)


def compute_only_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(finish_step, "spread", lambda pool, shares: ((),) * len(shares))


def forget_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A pipeline is given other microbatches than those in its gradients."""
    patch.setattr(finish_step, "_complete", lambda kept, *_: ((0,),) * len(kept))


def believe_nobody_has_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fencing, "has_switched", lambda *_: False)


def forget_the_old_plan(patch: pytest.MonkeyPatch) -> None:
    """Those who took part in the commit behind which the plan changes are not found any more."""
    find = replicas.placement_of
    patch.setattr(fencing, "placement_of", lambda record, placements: find(record, placements[-1:]))


def switch_when_the_first_is_ready(patch: pytest.MonkeyPatch) -> None:
    awaits = Turn.is_awaiting
    patch.setattr(
        Turn, "is_awaiting", lambda turn, *kinds: kinds != ("activate",) and awaits(turn, *kinds)
    )


def keep_every_pipeline(patch: pytest.MonkeyPatch) -> None:
    def unchanged(running: Placement, target: Placement) -> Placement:
        return replace(target, first_generations=(running.generation,) * len(target.places))

    patch.setattr(handover, "_grown_from", unchanged)


def begin_again_online(patch: pytest.MonkeyPatch) -> None:
    """As if nobody could have changed over when the coordinator comes back."""
    beside = (Phase.PREPARING, Phase.STAGING, Phase.SWITCHING)
    patch.setattr(
        Transition, "is_online", property(lambda self: self.is_ahead or self.phase in beside)
    )


def disregard_who_is_to_join(patch: pytest.MonkeyPatch) -> None:
    concerns = lost_engines._concerns
    patch.setattr(
        lost_engines,
        "_concerns",
        lambda turn, gone: turn.transition.phase is not Phase.SWITCHING and concerns(turn, gone),
    )


def go_on_behind_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Who is told of a commit behind which all stand still is taken to begin the next step."""
    kept = finish_step.kept_pipelines
    patch.setattr(fencing, "kept_pipelines", lambda *args, **_: kept(*args))


def let_in_at_any_moment(patch: pytest.MonkeyPatch) -> None:
    """Nodes take the place of whatever change is under way."""
    granted = user_requests.nodes_granted

    def whatever_happens(turn: Turn, signal: NodesGranted) -> None:
        transition = turn.run.transition
        if transition is not None and transition.phase is not Phase.PREPARING:
            turn.change(transition=None)
        granted(turn, signal)

    patch.setattr(user_requests, "nodes_granted", whatever_happens)


def go_on_when_an_engine_is_ready(patch: pytest.MonkeyPatch) -> None:
    """As if any change under way were still the one that the engine was started for."""
    check = preparing.check_prepared

    def in_any_phase(turn: Turn) -> None:
        if turn.run.transition is not None:
            turn.note(phase=Phase.PREPARING)
        check(turn)

    patch.setattr(preparing, "check_prepared", in_any_phase)


def start_engines_first(patch: pytest.MonkeyPatch) -> None:
    """A loss while engines start is not acted on."""
    recover = lost_engines._open_recovery

    def unless_engines_start(turn: Turn, *args: Any) -> None:
        transition = turn.run.transition
        if transition is None or transition.phase is not Phase.PREPARING:
            recover(turn, *args)

    patch.setattr(lost_engines, "_open_recovery", unless_engines_start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What is taken away, and where that is found out."""

    remove: Remove = lambda _: None
    rules: Rules = field(default_factory=Rules)
    num_faults: int = 1
    num_crashes: int = 0
    num_failures: int = 0
    cluster: Cluster = UNEVEN
    drains: bool = False
    reorders: bool = False
    is_slow: bool = False
    """It takes longer than some seconds to be found out."""

    def search(self, patch: pytest.MonkeyPatch) -> None:
        self.remove(patch)
        search(
            Model(
                num_faults=self.num_faults,
                num_crashes=self.num_crashes,
                num_failures=self.num_failures,
                rules=self.rules,
                cluster=self.cluster,
                drains=self.drains,
                reorders=self.reorders,
            )
        )


def _names(guards: dict[str, Guard]) -> list[Any]:
    return [
        pytest.param(name, marks=[pytest.mark.slow] if guard.is_slow else [])
        for name, guard in guards.items()
    ]


GUARDS = {
    "wait for all reports": Guard(remove=decide_on_the_first_report),
    "roll forward before anything else": Guard(remove=do_not_roll_forward),
    "wait for stragglers": Guard(remove=do_not_wait_for_stragglers, cluster=EVEN),
    "keep only with equal applied generations": Guard(
        remove=keep_whatever_was_applied, num_faults=2, cluster=EVEN
    ),
    "keep only who computes": Guard(
        remove=keep_whoever_stands_still, num_faults=2, cluster=EVEN, is_slow=True
    ),
    "compute what was lost": Guard(remove=compute_only_what_is_kept),
    "count what is kept": Guard(remove=forget_what_is_kept),
    "an Activate voids sums": Guard(
        rules=Rules(void_sums=False), num_faults=2, reorders=True, cluster=EVEN
    ),
    "a report is a promise": Guard(rules=Rules(fence=False), num_faults=2, reorders=True),
    "gradients of broken pipelines are cleared": Guard(rules=Rules(clear_broken=False)),
    "followers take part in exchanges": Guard(
        rules=Rules(followers_sum=False), num_faults=2, reorders=True
    ),
    "older generations are refused": Guard(
        rules=Rules(refuse_stale=False), num_faults=2, reorders=True
    ),
}
"""Of a loss in the middle of a step."""


@pytest.mark.parametrize("name", _names(GUARDS))
def test_a_guard_of_the_step_in_flight_is_needed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ViolationError):
        GUARDS[name].search(monkeypatch)


HANDOVER = {
    "reports tell which plan is in force": Guard(
        remove=believe_nobody_has_changed, cluster=DISPLACING, is_slow=True
    ),
    "stragglers are those of the old plan": Guard(remove=forget_the_old_plan, cluster=DRAINING),
    "all are ready before anybody switches": Guard(
        remove=switch_when_the_first_is_ready, cluster=DRAINING
    ),
    "only unchanged pipelines are kept": Guard(remove=keep_every_pipeline, cluster=DRAINING),
    "everyone is collected once Switch was sent": Guard(
        remove=begin_again_online,
        num_faults=0,
        num_crashes=1,
        cluster=DRAINING,
        is_slow=True,
    ),
    "a joiner counts once Switch was sent": Guard(
        remove=disregard_who_is_to_join, cluster=DRAINING
    ),
    "behind a commit that ends the plan nobody goes on": Guard(
        remove=go_on_behind_the_commit, num_failures=1, cluster=DRAINING, is_slow=True
    ),
    "all hold the mark": Guard(rules=Rules(all_hold_the_mark=False), cluster=DRAINING),
    "layers are followed to the commit": Guard(
        rules=Rules(follow_to_the_commit=False), cluster=DRAINING
    ),
    "old layers are kept until the first commit": Guard(
        rules=Rules(keep_old_layers=False), cluster=DRAINING
    ),
    "a joiner has the record of the commit": Guard(
        rules=Rules(joiner_is_witness=False), cluster=DRAINING, is_slow=True
    ),
}
"""Of a change behind a commit."""


@pytest.mark.parametrize("name", _names(HANDOVER))
def test_a_guard_of_the_handover_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ViolationError):
        replace(HANDOVER[name], drains=True).search(monkeypatch)


JOIN = {
    "nobody is let in in the middle of a change": Guard(remove=let_in_at_any_moment),
    "an engine that becomes ready ends no other change": Guard(
        remove=go_on_when_an_engine_is_ready
    ),
    "a loss counts while engines start": Guard(remove=start_engines_first),
    "a joiner counts once Switch was sent": Guard(remove=disregard_who_is_to_join, is_slow=True),
    "a joiner has the record of the commit": Guard(
        rules=Rules(joiner_is_witness=False), is_slow=True
    ),
}
"""Of a node that joins."""


@pytest.mark.parametrize("name", _names(JOIN))
def test_a_guard_of_the_join_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ViolationError):
        replace(JOIN[name], cluster=JOINING).search(monkeypatch)


def test_a_generation_that_is_not_stored_before_it_is_told_is_found() -> None:
    """Decisions are durable first; a coordinator that forgets them repeats a generation [4, 7]."""
    with pytest.raises(ViolationError):
        search(Model(num_faults=1, num_crashes=1, stores=False, cluster=UNEVEN))
