"""The figures of a recovery, each from the timestamps that the module names."""

from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.outcome import Activated, FenceReport, Staged
from planaria_coordinator.domain.job.job import StepMetrics
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.recovery.recovery_figures import (
    RecoveryFigures,
    hit_step,
    lost_time,
    recovery_figures,
)
from planaria_coordinator.domain.recovery.transition import (
    Cause,
    Phase,
    Transition,
    TransitionHistory,
)
from unit.coordinator.simulation.world import running_world

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def history_of(cause: Cause = Cause.NODE_LOST, **changes: Any) -> TransitionHistory:
    """The fault at 0 s, noticed at 0.1 s."""
    made = TransitionHistory(cause=cause, start_time=at(0), first_open_time=at(0.1))
    return replace(made, **changes)


def report(fenced: float, computed: float | None, *, goes_on: bool = False) -> FenceReport:
    return FenceReport(
        committed_steps=4,
        last_commit=None,
        layers=(),
        finished_microbatches=(),
        step_compute_seconds=0.0,
        fence_time=at(fenced),
        park_time=None if goes_on else at(fenced),
        compute_end_time=None if computed is None else at(computed),
    )


def activated(stopped: float, resumed: float) -> Activated:
    return Activated(rebuild_start_time=at(stopped), resume_time=at(resumed))


def transition(history: TransitionHistory, mode: QuiesceMode, **changes: Any) -> Transition:
    """A pipeline of the engines a and b, and one of c and d, in the plan that it leads to."""
    plan = Plan(pipelines=(), idle_node_ids=(), iteration_seconds=1.0, fault_tolerance=0)
    target = Placement(generation=3, plan=plan, stage_engines=(("a", "b"), ("c", "d")), reason="")
    made = Transition(
        generation=3,
        phase=Phase.ACTIVATING,
        history=history,
        open_time=at(0.1),
        horizon_seconds=60.0,
        mode=mode,
        stopped=("a", "b", "c"),
        target=target,
        target_steps=4,
    )
    return replace(made, **changes)


def switched(history: TransitionHistory, **resumed: tuple[float, float]) -> Transition:
    """A change at a commit: when each engine stopped for it, and could compute again."""
    staged = Staged(
        num_bytes=0,
        start_time=at(0.5),
        rebuild_end_time=at(0.6),
        copy_end_time=None,
    )
    return transition(
        history,
        QuiesceMode.AT_COMMIT,
        staged=dict.fromkeys(resumed, staged),
        activated={engine_id: activated(*times) for engine_id, times in resumed.items()},
    )


def all_of(figures: RecoveryFigures) -> tuple[float | None, ...]:
    return astuple(figures)


REBUILT = {"a": activated(1.0, 1.4), "b": activated(1.0, 1.5), "c": activated(1.0, 1.6)}
PARKED = {"a": report(0.2, 0.05), "b": report(0.3, 0.25), "c": report(0.25, None)}


def test_a_loss_with_healthy_pipelines_takes_two_transitions() -> None:
    """Fence and resume are of the first, regrow is of the second."""
    history = history_of(
        fence_time=at(0.3), resume_time=at(0.4), idle_seconds=0.0, stop_times={"c": at(0.2)}
    )
    done = switched(history, a=(1.0, 1.0), b=(1.0, 1.0), c=(1.1, 1.3), d=(1.1, 1.2))
    assert all_of(recovery_figures(done)) == pytest.approx((0.1, 0.3, 0.4, 1.3, 0.0))


def test_where_no_survivor_lost_its_pipeline_all_have_one_when_they_resume() -> None:
    history = history_of(fence_time=at(0.3), resume_time=at(0.4), idle_seconds=0.0)
    kept = transition(history, QuiesceMode.AT_COMMIT)
    figures = recovery_figures(kept)
    assert figures.regrow_seconds == figures.resume_seconds == pytest.approx(0.4)


def test_a_loss_without_healthy_pipelines_takes_one_transition() -> None:
    """Nobody computes from the last pass of any engine until the first can compute again."""
    done = transition(
        history_of(fence_time=at(0.3)), QuiesceMode.FENCE, reports=PARKED, activated=REBUILT
    )
    assert all_of(recovery_figures(done)) == pytest.approx((0.1, 0.3, 1.6, 1.6, 1.4 - 0.25))


def test_waits_for_a_silent_peer_are_idle_from_the_fault_on() -> None:
    """Its pipeline waited for it before the loss was noticed; before the fault that is no loss."""
    waiting = {"a": report(3.2, 0.5), "b": report(3.3, 0.6)}
    silent = history_of(first_open_time=at(3.0), fence_time=at(3.3))
    done = transition(
        silent, QuiesceMode.FENCE, reports=waiting, activated={"a": activated(3.5, 4.0)}
    )
    figures = recovery_figures(done)
    assert figures.detect_seconds == pytest.approx(3.0)
    assert figures.idle_seconds == pytest.approx(4.0 - 0.6)
    early = {"a": report(3.2, -2.0), "b": report(3.3, -1.0)}
    assert recovery_figures(replace(done, reports=early)).idle_seconds == pytest.approx(4.0)


def test_a_pipeline_that_goes_on_computes() -> None:
    going_on = {**PARKED, "a": report(0.2, 0.0, goes_on=True)}
    done = transition(history_of(), QuiesceMode.FENCE, reports=going_on, activated=REBUILT)
    assert recovery_figures(done).idle_seconds == 0.0


@pytest.mark.parametrize("cause", [Cause.NODE_JOINED, Cause.NODE_DRAINED, Cause.RESUMED])
def test_a_planned_change_has_no_fault_to_count_from(cause: Cause) -> None:
    """Of both engines that switch, the one computes while the other does not."""
    done = switched(history_of(cause), a=(10.0, 10.2), b=(10.3, 10.5))
    assert recovery_figures(done) == RecoveryFigures(idle_seconds=0.0)
    at_once = switched(history_of(cause), a=(10.0, 10.5), b=(10.2, 10.4))
    assert recovery_figures(at_once).idle_seconds == pytest.approx(0.2)


def test_a_recovery_that_ends_with_the_job_has_no_more_than_it_came_to() -> None:
    fenced = transition(
        history_of(fence_time=at(0.3)), QuiesceMode.FENCE, reports=PARKED, target=None
    )
    figures = recovery_figures(fenced)
    assert figures.fence_seconds == pytest.approx(0.3)
    assert (figures.resume_seconds, figures.regrow_seconds, figures.idle_seconds) == (None,) * 3
    assert hit_step(fenced) is None
    resumed = history_of(fence_time=at(0.3), resume_time=at(0.4), stop_times={"c": at(0.2)})
    paused = transition(resumed, QuiesceMode.AT_COMMIT, target=None)
    assert recovery_figures(paused).resume_seconds == pytest.approx(0.4)
    assert recovery_figures(paused).regrow_seconds is None


def test_without_survivors_no_engine_is_fenced() -> None:
    """At the initial state nothing is lost: other nodes begin the job again."""
    done = transition(history_of(), QuiesceMode.FENCE, activated=REBUILT, stopped=())
    figures = recovery_figures(done)
    assert (figures.fence_seconds, figures.idle_seconds) == (None, None)
    assert figures.resume_seconds == pytest.approx(1.6)


def test_clocks_that_disagree_make_no_length_negative() -> None:
    """Engines' clocks may be ahead of ours or behind; the order of what happened is known."""
    history = history_of(first_open_time=at(-1.0), fence_time=at(0.5))
    outcomes = {"a": activated(-5.0, -4.0), "b": activated(-5.0, -4.5)}
    done = transition(history, QuiesceMode.FENCE, reports=PARKED, activated=outcomes)
    assert all_of(recovery_figures(done)) == pytest.approx((0.0, 0.5, 0.5, 0.5, 0.0))


def test_the_step_that_was_hit() -> None:
    """In flight at the fence of a loss; the first of the new plan of a change; none of a pause."""
    lost = transition(history_of(hit_step=2), QuiesceMode.FENCE)
    assert hit_step(lost) == 2
    assert hit_step(transition(history_of(Cause.NODE_JOINED), QuiesceMode.AT_COMMIT)) == 4
    assert hit_step(transition(history_of(Cause.RESUMED), QuiesceMode.IMMEDIATE)) is None


def steps(first: int, *lengths: float, generation: int = 3) -> list[StepMetrics]:
    """Steps of these lengths; the one before the first was of another plan."""
    time, found = 0.0, []
    for number, seconds in enumerate((1.0, *lengths), first - 1):
        time += seconds
        found.append(
            StepMetrics(
                job_id="job-1",
                step=number,
                loss=1.0,
                gradient_norm=1.0,
                learning_rate=0.1,
                num_tokens=8,
                step_seconds=0.0,
                generation=1 if number < first else generation,
                commit_time=at(time),
            )
        )
    return found


@pytest.mark.parametrize("num_whole", [3, 10])
def test_lost_is_the_step_that_was_hit_minus_the_median_of_whole_ones(num_whole: int) -> None:
    """With three of them when the plan changes, or the job ends; with ten at once."""
    known = steps(4, 2.5, *[1.0] * (num_whole - 1), 9.0)
    lost = lost_time(4, 3, known, has_ended=num_whole < 10)
    assert lost.seconds == pytest.approx(1.5)
    assert lost.is_final
    changed = replace(known[-1], step=known[-1].step + 1, generation=4)
    assert lost_time(4, 3, [*known, changed], has_ended=False) == lost


def test_lost_is_known_only_after_these_steps() -> None:
    lost = lost_time(4, 3, steps(4, 2.5, *[1.0] * 9), has_ended=False)
    assert (lost.seconds, lost.is_final) == (None, False)


def test_a_plan_that_runs_fewer_than_three_whole_steps_has_nothing_to_compare_with() -> None:
    known = steps(4, 2.5, 1.0, 1.0)
    changed = replace(known[-1], step=7, generation=4)
    lost = lost_time(4, 3, [*known, changed], has_ended=False)
    assert (lost.seconds, lost.is_final) == (None, True)


@pytest.mark.parametrize(
    ("step", "known"),
    [
        (4, steps(4, *[1.0] * 11)[1:]),  # nobody knows when it began
        (4, steps(4, *[1.0] * 11, generation=5)),  # another change finished it
        (5, [*steps(4, 1.0), *steps(17, 1.0)[1:]]),  # it was never reported
    ],
)
def test_lost_is_none_where_it_would_be_invented(step: int, known: list[StepMetrics]) -> None:
    lost = lost_time(step, 3, known, has_ended=False)
    assert (lost.seconds, lost.is_final) == (None, True)


def test_a_step_that_was_quicker_than_usual_lost_nothing() -> None:
    assert lost_time(4, 3, steps(4, 0.5, *[1.0] * 10), has_ended=False).seconds == 0.0


def test_the_step_that_only_evaluates_is_no_whole_one() -> None:
    known = steps(4, 2.5, 1.0, 1.0, 0.1)
    closing = replace(known[-1], num_tokens=0, loss=None)
    assert lost_time(4, 3, [*known[:-1], closing], has_ended=True).seconds is None


@pytest.mark.parametrize(
    ("lost", "crash_in", "expected"),
    [
        (("n0",), Phase.QUIESCING, (0.0, 3.75, 3.75, 8.75, 0.0)),
        (("n0", "n3"), Phase.QUIESCING, (0.0, 3.75, 3.75, 3.75, 3.75)),
        (("n0",), Phase.ACTIVATING, (0.0, 0.25, 3.75, 8.75, 0.0)),
        (("n0", "n3"), Phase.ACTIVATING, (0.0, 0.25, 3.75, 3.75, 3.75)),
        (("n0",), Phase.SWITCHING, (0.0, 3.25, 3.25, 8.75, 0.0)),
    ],
)
async def test_a_coordinator_that_restarts_counts_on_from_the_fault(
    lost: tuple[str, ...], crash_in: Phase, expected: tuple[float, ...]
) -> None:
    """It dies 1.25 s after the fault for 2 s; half a second later engines do what was held back.

    n1 is fenced 0.25 s after the fault, or when it is released. Engines that are collected again
    count as fenced again only if they had activated.
    """
    num_nodes = 6 if len(lost) == 1 else 4  # pipelines n0-n3, n1-n4, n2-n5; or n0-n2, n1-n3
    world = await running_world(num_nodes, resources={"min_nodes_per_pipeline": 2})
    world.begin_step()
    world.agents["n1"].held_kinds.add("quiesce")
    if crash_in is Phase.ACTIVATING:
        world.hold("activate")
    for node_id in lost:
        await world.kill_node(node_id)
    world.clock.advance(0.25)
    if crash_in is not Phase.QUIESCING:
        world.agents["n1"].release_kind("quiesce")
        await world.settle()
    world.clock.advance(1.0)
    assert world.phase is crash_in
    await world.crash_coordinator()
    world.clock.advance(2.0)
    await world.reconnect()
    world.clock.advance(0.5)
    await world.release()
    world.clock.advance(4.0)
    await world.train()
    (recovery,) = world.recoveries
    names = ("detect", "fence", "resume", "regrow", "idle")
    figures = [getattr(recovery, f"{name}_seconds") for name in names]
    assert figures == pytest.approx(expected)
    assert recovery.hit_step == 1


@pytest.mark.parametrize(
    ("mode", "resume_time", "expected"),
    [
        (QuiesceMode.AT_COMMIT, None, (True, False)),
        (QuiesceMode.AT_COMMIT, at(0.4), (False, True)),
        (QuiesceMode.FENCE, at(0.4), (False, False)),
        (QuiesceMode.IMMEDIATE, None, (False, False)),
    ],
)
def test_a_change_begins_at_a_commit_or_regrows_or_neither(
    mode: QuiesceMode, resume_time: datetime | None, expected: tuple[bool, bool]
) -> None:
    """A fence on the way makes it neither: its engines do not wait for a commit."""
    change = transition(history_of(resume_time=resume_time), mode)
    assert (change.begins_at_commit, change.regrows) == expected
