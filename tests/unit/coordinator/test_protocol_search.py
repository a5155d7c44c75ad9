"""Every order of events of a small job keeps the invariants, and every guard is needed for that.

The search goes through all states of the coordinator's decide() and the engines' promises; see
protocol_model.py. What it may not find: a microbatch summed twice or never [1], replicas that went
apart or a step taken back [2], a job that fails although a replica is left [5], and a state in
which nothing can happen any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from planaria_coordinator.domain import (
    fencing,
    finish_step,
    handover,
    losses,
    preparing,
    replicas,
    wishes,
)
from planaria_coordinator.domain.directive import QuiesceMode
from planaria_coordinator.domain.outcome import FenceReport
from planaria_coordinator.domain.placement import Placement
from planaria_coordinator.domain.signals import NodesGranted
from planaria_coordinator.domain.transition_state import Cause, Phase, Transition
from planaria_coordinator.domain.turn import Turn
from unit.coordinator.protocol_cluster import EVEN, UNEVEN, Cluster
from unit.coordinator.protocol_model import Found, Model, search
from unit.coordinator.protocol_state import Rules, ViolationError

DRAINING = replace(UNEVEN, spare=("a2",))
"""The first node is to be freed and a spare one takes its place: one pipeline is left as it is."""
DISPLACING = replace(UNEVEN, spare=("b1",))
"""The same with a spare node that lets nobody keep its place."""
JOINING = replace(UNEVEN, joiners=("b1",))
"""A node joins the pipeline of a single stage; the other one is left as it is."""
REPLACING = replace(UNEVEN, joiners=("a2",))
"""A node joins as a pipeline of its own, in the place of one that the plan leaves idle."""
GROWING = Cluster(training=("a0", "a1"), joiners=("b0", "b1"))
"""Two nodes join as a second pipeline."""
SPARING = replace(EVEN, joiners=("c0",))
"""A node joins that no plan has a place for until one of the others is lost."""


@pytest.mark.parametrize("cluster", [UNEVEN, pytest.param(EVEN, marks=pytest.mark.slow)])
def test_one_loss_at_any_moment(cluster: Cluster) -> None:
    model = Model(num_faults=1, num_crashes=0, cluster=cluster)
    found = search(model)
    assert found.num_ends > 100
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert any(transition.finishes_step for transition in ways), "pipelines finish steps"
    assert any(transition.is_ahead for transition in ways), "and others regrow"
    assert any(transition.activated and transition.staged for transition in ways), "beside training"


def test_two_losses_at_any_moments_of_a_step() -> None:
    """Directives of different generations may overtake one another besides."""
    model = Model(num_faults=2, num_crashes=0, num_steps=1, reorders=True, cluster=UNEVEN)
    assert search(model).num_ends > 200


def test_a_loss_and_a_place_that_cannot_be_made_ready() -> None:
    """The change is made standing still then, with copies."""
    model = Model(num_faults=1, num_crashes=0, num_failures=1, cluster=UNEVEN)
    search(model)
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert any(transition.copied for transition in ways)


@pytest.mark.parametrize(
    ("cluster", "num_lacks", "num_states"),
    [
        (UNEVEN, 1, 7_692),
        pytest.param(UNEVEN, 2, 13_042, marks=pytest.mark.slow),
        pytest.param(EVEN, 1, 68_009, marks=pytest.mark.slow),
    ],
)
def test_a_loss_and_groups_that_cannot_be_made(
    cluster: Cluster, num_lacks: int, num_states: int
) -> None:
    """A step that whole pipelines finish, they go on with; the counts are those of the design."""
    model = Model(num_faults=1, num_crashes=0, num_lacks=num_lacks, cluster=cluster)
    assert search(model).num_states == num_states
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert {way.mode for way in ways if way.story.num_attempts} == set(QuiesceMode)


def test_a_handover_whoever_is_slow() -> None:
    """Whoever hears of it late, or has its layers late: all train on in the new plan."""
    model = Model(num_faults=0, num_crashes=0, cluster=DRAINING, drains=True)
    assert search(model).num_ends > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "num_faults", "num_crashes", "num_steps", "num_states"),
    [
        (EVEN, 2, 0, 2, 299_673),
        (EVEN, 1, 1, 1, 238_294),
        (UNEVEN, 2, 0, 3, 27_599),
        (UNEVEN, 1, 1, 3, 101_635),
    ],
)
def test_faults_and_crashes_at_any_moments(
    cluster: Cluster, num_faults: int, num_crashes: int, num_steps: int, num_states: int
) -> None:
    """Two losses, and a loss and a crash; the counts are those of docs/design.md."""
    model = Model(
        num_faults=num_faults, num_crashes=num_crashes, num_steps=num_steps, cluster=cluster
    )
    assert search(model).num_states == num_states


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [DRAINING, DISPLACING])
@pytest.mark.parametrize(
    ("num_faults", "num_crashes", "num_failures"), [(1, 0, 0), (0, 1, 0), (1, 0, 1)]
)
def test_a_handover_with_a_fault_at_any_moment(
    cluster: Cluster, num_faults: int, num_crashes: int, num_failures: int
) -> None:
    """Somebody dies, or the coordinator crashes, at any moment of a change of all places."""
    model = Model(
        num_faults=num_faults,
        num_crashes=num_crashes,
        num_failures=num_failures,
        cluster=cluster,
        drains=True,
    )
    assert search(model).num_states > 200_000
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert any(transition.has_switched for transition in ways), "some had changed over already"


def assert_somebody_joins(model: Model, found: Found) -> None:
    """Engines were started for a join, and have places in the last plan of some runs."""
    ways = [run.transition for run in model.runs if run.transition is not None]
    starts = [way for way in ways if way.phase is Phase.PREPARING]
    assert any(way.story.cause is Cause.NODE_JOINED for way in starts)
    assert any(placed.issuperset(model.cluster.joiners) for placed in found.placed_at_end)


@pytest.mark.parametrize("cluster", [JOINING, REPLACING, GROWING])
def test_a_join_whoever_is_slow(cluster: Cluster) -> None:
    """Nodes are given to the job at any moment, and each engine is ready at any later one."""
    model = Model(num_faults=0, num_crashes=0, cluster=cluster)
    found = search(model)
    assert found.num_ends > 200
    assert_somebody_joins(model, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "num_faults", "num_crashes", "num_states"),
    [
        (JOINING, 1, 0, 272_586),
        (REPLACING, 1, 0, 300_902),
        (SPARING, 1, 0, 374_079),
        (JOINING, 0, 1, 365_932),
        (REPLACING, 0, 1, 451_419),
        (GROWING, 0, 1, 261_415),
    ],
)
def test_a_join_with_a_fault_at_any_moment(
    cluster: Cluster, num_faults: int, num_crashes: int, num_states: int
) -> None:
    """Somebody dies, or the coordinator crashes; the counts are those of docs/design.md."""
    model = Model(num_faults=num_faults, num_crashes=num_crashes, cluster=cluster)
    found = search(model)
    assert found.num_states == num_states
    assert_somebody_joins(model, found)


# -- guards removed one by one -----------------------------------------------------------------

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


def begin_again_beside_training(patch: pytest.MonkeyPatch) -> None:
    """As if nobody could have changed over when the coordinator comes back."""
    beside = (Phase.PREPARING, Phase.STAGING, Phase.SWITCHING)
    patch.setattr(
        Transition, "is_beside", property(lambda self: self.is_ahead or self.phase in beside)
    )


def disregard_who_is_to_join(patch: pytest.MonkeyPatch) -> None:
    concerns = losses._concerns
    patch.setattr(
        losses,
        "_concerns",
        lambda turn, gone: turn.transition.phase is not Phase.SWITCHING and concerns(turn, gone),
    )


def go_on_behind_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Who is told of a commit behind which all stand still is taken to begin the next step."""
    kept = finish_step.kept_pipelines
    patch.setattr(fencing, "kept_pipelines", lambda *args, **_: kept(*args))


def let_in_at_any_moment(patch: pytest.MonkeyPatch) -> None:
    """Nodes take the place of whatever change is under way."""
    granted = wishes.nodes_granted

    def whatever_happens(turn: Turn, signal: NodesGranted) -> None:
        transition = turn.run.transition
        if transition is not None and transition.phase is not Phase.PREPARING:
            turn.change(transition=None)
        granted(turn, signal)

    patch.setattr(wishes, "nodes_granted", whatever_happens)


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
    recover = losses._open_recovery

    def unless_engines_start(turn: Turn, *args: Any) -> None:
        transition = turn.run.transition
        if transition is None or transition.phase is not Phase.PREPARING:
            recover(turn, *args)

    patch.setattr(losses, "_open_recovery", unless_engines_start)


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
        remove=begin_again_beside_training,
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
