"""What is read from traces: a kill of one of three nodes that each hold the whole model."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.common.trace import EngineTrace, Event, Span, nobody_computes, times_computed
from benchmarks.common.workbench import Hurt
from benchmarks.recovery.anatomy import Anatomy, active_times, dissect
from benchmarks.recovery.goodput import Change, calm_step_seconds, possible_steps
from planaria.models import Pipeline, Plan, Recovery, Stage

NODES = ("a", "b", "c")
STEP_SECONDS = 1.0
KILL = Hurt(
    node_id="c",
    at=10.5,
    time=1000.5,
    generation=1,
    num_recoveries=0,
    plan=Plan(
        pipelines=tuple(
            Pipeline(
                stages=(Stage(first_layer=0, num_layers=2, node_id=node),), microbatches=(number,)
            )
            for number, node in enumerate(NODES)
        )
    ),
)


def event(name: str, at: float, **detail: int) -> Event:
    return Event(name=name, at=at, detail=detail)


def undisturbed(node: str, microbatch: int) -> EngineTrace:
    """Return ten steps of a second each: three quarters of it a forward pass."""
    trace = EngineTrace(
        name=f"job.{node}.0.1",
        events=[event("place", 0.0, generation=1, first_layer=0, num_layers=2)],
    )
    for step in range(10):
        trace.spans += [
            span("forward", step, step + 0.75, step, microbatch),
            span("reduce", step + 0.75, step + 1.0, step),
        ]
        trace.events.append(event("commit", step + 1.0, step=step, generation=1))
    return trace


def span(kind: str, start: float, end: float, step: int, microbatch: int | None = None) -> Span:
    return Span(kind=kind, start=start, end=end, step=step, microbatch=microbatch)


@pytest.fixture
def traces() -> list[EngineTrace]:
    """Return engines of which the third dies in step 10, and the others redo its microbatch."""
    engines = [undisturbed(node, number) for number, node in enumerate(NODES)]
    for number, engine in enumerate(engines):
        engine.spans.append(span("forward", 10.0, 10.75, 10, number))
    for engine in engines[:2]:
        engine.events += [
            event("fence", 10.6, generation=2),
            event("activated", 10.7),
            event("commit", 11.5, step=10, generation=2),
        ]
        engine.spans.append(span("wait", 10.75, 11.0, 10))
    engines[0].spans.append(span("forward", 11.0, 11.25, 10, 2))
    return engines


def dissected(traces: list[EngineTrace], kill: Hurt = KILL) -> Anatomy:
    noticed = datetime.fromtimestamp(1000.55, UTC)
    recovery = Recovery(
        id=1, cause="node_lost", pause_seconds=0.1, start_time=noticed, generation=3
    )
    return dissect(traces, kill, recovery)


def test_times_count_from_the_kill(traces: list[EngineTrace]) -> None:
    anatomy = dissected(traces)
    assert anatomy.seconds_to_noticed == pytest.approx(0.05)
    assert anatomy.seconds_to_all_fenced == pytest.approx(0.1)
    assert anatomy.seconds_to_all_active == pytest.approx(0.2)
    assert anatomy.recovery_seconds == pytest.approx(0.2)  # nobody who lives had to stop


def test_the_tenth_engine_of_a_job_is_later_than_its_second(traces: list[EngineTrace]) -> None:
    """A node that was lost and came back has two; only the later one lives."""
    traces[0].name = f"job.{NODES[0]}.0.10"
    ended = EngineTrace(
        name=f"job.{NODES[0]}.0.2",
        events=[event("place", 0.0, generation=1, first_layer=0, num_layers=2)],
    )
    by_name = sorted([*traces, ended], key=lambda engine: engine.name)
    assert active_times(by_name, KILL) == [10.7, 10.7]


def test_the_recovery_lasts_until_the_wounded_compute_again(traces: list[EngineTrace]) -> None:
    wounded = EngineTrace(
        name="job.d.0.1",
        events=[
            event("place", 0.0, generation=1, first_layer=1, num_layers=1),
            event("fence", 10.6, generation=2),
            event("activated", 10.7),
            event("place", 10.7, generation=2, first_layer=0, num_layers=0),
            event("place", 11.2, generation=3, first_layer=1, num_layers=1),
            event("place", 20.0, generation=4, first_layer=0, num_layers=2),
        ],
    )
    stages = tuple(
        Stage(first_layer=layer, num_layers=1, node_id=node) for layer, node in enumerate("cd")
    )
    plan = Plan(pipelines=(*KILL.plan.pipelines[:2], Pipeline(stages=stages)))
    anatomy = dissected([*traces, wounded], replace(KILL, plan=plan))
    assert anatomy.recovery_seconds == pytest.approx(0.7)


def test_the_step_that_was_hit_is_compared_with_one_that_others_do_from_its_start(
    traces: list[EngineTrace],
) -> None:
    anatomy = dissected(traces)
    assert anatomy.step == 10
    assert anatomy.is_finished_by_others
    assert anatomy.excess_seconds(1.2) == pytest.approx(0.3)
    assert (anatomy.redone_microbatches, anatomy.lost_microbatches) == (1, 1)


def test_the_ends_of_steps_are_idle_without_a_kill_as_well(traces: list[EngineTrace]) -> None:
    assert dissected(traces).usual_idle_share == pytest.approx(0.25)
    assert dissected(traces).whole_pipelines_idle_share == pytest.approx(0.0)
    # A quarter of every step, and the recovery takes 0.2 s.
    assert dissected(traces).usual_nobody_computed_seconds == pytest.approx(0.05)


def test_time_in_which_nobody_computes_has_the_name_of_what_was_done(
    traces: list[EngineTrace],
) -> None:
    named = nobody_computes(traces, (9.0, 11.0))
    assert named == {"reduce": pytest.approx(0.25), "wait": pytest.approx(0.25)}


def test_only_first_stages_count_what_was_begun(traces: list[EngineTrace]) -> None:
    second = event("place", 0.0, generation=1, first_layer=1, num_layers=1)
    traces[1].events[0] = second
    assert times_computed(traces, 3) == {0: 1, 2: 1}


def test_what_could_be_trained_follows_the_number_of_nodes() -> None:
    changes = [Change(at=0.0, num_nodes=6), Change(at=10.0, num_nodes=5)]
    step_seconds: dict[int, Any] = {5: 2.0, 6: 1.0}
    assert possible_steps(changes, 20.0, step_seconds) == 15.0


def test_calm_steps_are_those_before_the_next_change_in_one_generation() -> None:
    """A stretch whose last steps are of two plans tells nothing."""
    changes = [
        Change(at=0.0, num_nodes=6),
        Change(at=12.5, num_nodes=5),
        Change(at=40.0, num_nodes=6),
    ]
    commits = {
        **{step: float(step) for step in range(1, 13)},
        **{step: 12.0 + 3.0 * (step - 12) for step in range(13, 18)},
        **{step: 27.0 + 2.0 * (step - 17) for step in range(18, 24)},
        **{step: 40.0 + step - 23 for step in range(24, 32)},
    }
    generations = {step: 1 + (step > 12) + (step > 17) + (step > 30) for step in commits}
    calm = calm_step_seconds(commits, generations, changes, 50.0)
    assert calm == {6: 1.0, 5: 2.0}
