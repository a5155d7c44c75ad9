"""Every order of events of a small job keeps the invariants, and every guard is needed for that.

The search goes through all states of the coordinator's decide() and the engines' promises; see
protocol_model.py. What it may not find: a microbatch summed twice or never [1], replicas that went
apart or a step taken back [2], a job that fails although a replica is left [5], and a state in
which nothing can happen any more.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planaria_coordinator.domain import fencing, finish_step
from planaria_coordinator.domain.directive import FenceReport
from planaria_coordinator.domain.turn import Turn
from unit.coordinator.protocol_model import Model, Rules, ViolationError, search


def test_one_loss_at_any_moment() -> None:
    model = Model(num_faults=1, num_crashes=0)
    found = search(model)
    assert found.num_ends > 100
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert any(transition.finishes_step for transition in ways), "pipelines finish steps"
    assert any(transition.is_ahead for transition in ways), "and others regrow"
    assert any(transition.copied for transition in ways), "with copies"


def test_two_losses_at_any_moments_of_a_step() -> None:
    """Directives of different generations may overtake one another besides."""
    model = Model(num_faults=2, num_crashes=0, num_steps=1, reorders=True)
    assert search(model).num_ends > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_faults", "num_crashes", "num_steps"), [(1, 1, 1), (2, 0, 2), (1, 1, 2)]
)
def test_faults_and_crashes_at_any_moments(
    num_faults: int, num_crashes: int, num_steps: int
) -> None:
    """Two losses over two steps: 262,114 states; a loss and a crash of the coordinator: 695,726."""
    model = Model(num_faults=num_faults, num_crashes=num_crashes, num_steps=num_steps)
    assert search(model).num_states > 200_000


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
            lambda placement, reports, *rest: kept(
                placement, {e: change(report) for e, report in reports.items()}, *rest
            ),
        )

    return remove


keep_whatever_was_applied = _see_reports_as(
    lambda report: replace(report, applied_generation=9, kept_microbatches=(0, 1))
)
keep_whoever_stands_still = _see_reports_as(
    lambda report: replace(
        report, park_time=None, kept_microbatches=report.kept_microbatches or (0,)
    )
)


def compute_only_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(finish_step, "spread", lambda pool, shares: ((),) * len(shares))


def forget_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A pipeline is given other microbatches than those in its gradients."""
    patch.setattr(finish_step, "_complete", lambda kept, *_: ((0,),) * len(kept))


def forget_followers(patch: pytest.MonkeyPatch) -> None:
    finishing = finish_step.finishing_placement
    patch.setattr(
        fencing,
        "finishing_placement",
        lambda *args, **named: replace(finishing(*args, **named), followers={}),
    )


COORDINATOR: dict[str, tuple[Remove, int, int]] = {
    "wait for all reports": (decide_on_the_first_report, 1, 0),
    "roll forward before anything else": (do_not_roll_forward, 1, 0),
    "wait for stragglers": (do_not_wait_for_stragglers, 1, 0),
    "keep only with equal applied generations": (keep_whatever_was_applied, 2, 0),
    "keep only who computes": (keep_whoever_stands_still, 2, 0),
    "compute what was lost": (compute_only_what_is_kept, 1, 0),
    "count what is kept": (forget_what_is_kept, 1, 0),
    "survivors follow": (forget_followers, 2, 0),
}


@pytest.mark.parametrize("guard", COORDINATOR)
def test_a_guard_of_the_coordinator_is_needed(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, num_faults, num_crashes = COORDINATOR[guard]
    remove(monkeypatch)
    with pytest.raises(ViolationError):
        search(Model(num_faults=num_faults, num_crashes=num_crashes))


ENGINES: dict[str, tuple[Rules, int]] = {
    "an Activate voids sums": (Rules(void_sums=False), 2),
    "a report is a promise": (Rules(fence=False), 2),
    "gradients of broken pipelines are cleared": (Rules(clear_broken=False), 1),
    "followers take part in exchanges": (Rules(followers_sum=False), 2),
    "older generations are refused": (Rules(refuse_stale=False), 2),
}


@pytest.mark.parametrize("guard", ENGINES)
def test_a_promise_of_the_engines_is_needed(guard: str) -> None:
    rules, num_faults = ENGINES[guard]
    with pytest.raises(ViolationError):
        search(Model(num_faults=num_faults, num_crashes=0, rules=rules, reorders=num_faults == 2))


def test_a_generation_that_is_not_stored_before_it_is_told_is_found() -> None:
    """Decisions are durable first; a coordinator that forgets them repeats a generation [4, 7]."""
    with pytest.raises(ViolationError):
        search(Model(num_faults=1, num_crashes=1, stores=False))
