"""What is read from traces: a kill of one of three nodes that each hold the whole model."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from benchmarks.common.trace import EngineTrace, Event, Span, nobody_computes, times_computed
from benchmarks.common.workbench import Hurt
from benchmarks.recovery.anatomy import Anatomy, active_times, dissect
from benchmarks.recovery.goodput import (
    Stretch,
    calm_step_seconds,
    layout,
    possible_steps,
    step_seconds_of_plans,
)
from planaria.models import Pipeline, Plan, Recovery, Stage

NODES = ("a", "b", "c")
STEP_SECONDS = 1.0


def stage_on(node_id: str, first_layer: int, num_layers: int) -> Stage:
    return Stage(
        first_layer=first_layer,
        num_layers=num_layers,
        node_index=0,
        node_id=node_id,
        accelerators=(0,),
    )


def pipeline_of(*stages: Stage, microbatches: tuple[int, ...] = ()) -> Pipeline:
    return Pipeline(
        stages=stages, microbatches=microbatches, iteration_seconds=1.0, max_microbatches=0
    )


def plan_of(*pipelines: Pipeline) -> Plan:
    return Plan(pipelines=pipelines, idle_node_ids=(), iteration_seconds=1.0, fault_tolerance=1)


KILL = Hurt(
    node_id="c",
    at=10.5,
    time=1000.5,
    generation=1,
    num_recoveries=0,
    plan=plan_of(
        *(
            pipeline_of(stage_on(node, 0, 2), microbatches=(number,))
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
        events=[event("assignment", 0.0, generation=1, first_layer=0, num_layers=2)],
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
    recovery = Recovery.model_construct(
        id=1,
        cause="node_lost",
        start_time=noticed,
        generation=3,
        detect_seconds=0.01,
        fence_seconds=0.05,
        resume_seconds=0.1,
        regrow_seconds=0.2,
        idle_seconds=0.0,
        lost_seconds=None,
    )
    return dissect(traces, kill, recovery)


def test_times_count_from_the_kill(traces: list[EngineTrace]) -> None:
    anatomy = dissected(traces)
    assert anatomy.seconds_to_noticed == pytest.approx(0.05)
    assert anatomy.fence_seconds == pytest.approx(0.1)
    assert anatomy.resume_seconds == pytest.approx(0.2)
    assert anatomy.regrow_seconds == pytest.approx(0.2)  # no survivor had to stop


def test_the_tenth_engine_of_a_job_is_later_than_its_second(traces: list[EngineTrace]) -> None:
    """A node that was lost and came back has two; only the later one lives."""
    traces[0].name = f"job.{NODES[0]}.0.10"
    ended = EngineTrace(
        name=f"job.{NODES[0]}.0.2",
        events=[event("assignment", 0.0, generation=1, first_layer=0, num_layers=2)],
    )
    by_name = sorted([*traces, ended], key=lambda engine: engine.name)
    assert active_times(by_name, KILL) == [10.7, 10.7]


def test_the_recovery_lasts_until_every_survivor_computes_again(traces: list[EngineTrace]) -> None:
    survivor = EngineTrace(
        name="job.d.0.1",
        events=[
            event("assignment", 0.0, generation=1, first_layer=1, num_layers=1),
            event("fence", 10.6, generation=2),
            event("activated", 10.7),
            event("assignment", 10.7, generation=2, first_layer=0, num_layers=0),
            event("assignment", 11.2, generation=3, first_layer=1, num_layers=1),
            event("assignment", 20.0, generation=4, first_layer=0, num_layers=2),
        ],
    )
    broken = pipeline_of(*(stage_on(node, layer, 1) for layer, node in enumerate("cd")))
    plan = plan_of(*KILL.plan.pipelines[:2], broken)
    anatomy = dissected([*traces, survivor], replace(KILL, plan=plan))
    assert anatomy.regrow_seconds == pytest.approx(0.7)


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
    assert dissected(traces).healthy_pipelines_idle_share == pytest.approx(0.0)
    # A quarter of every step, and the recovery takes 0.2 s.
    assert dissected(traces).usual_nobody_computed_seconds == pytest.approx(0.05)


def test_time_without_computation_is_named_by_what_was_done(
    traces: list[EngineTrace],
) -> None:
    named = nobody_computes(traces, (9.0, 11.0))
    assert named == {"reduce": pytest.approx(0.25), "wait": pytest.approx(0.25)}


def test_only_first_stages_count_what_was_begun(traces: list[EngineTrace]) -> None:
    second = event("assignment", 0.0, generation=1, first_layer=1, num_layers=1)
    traces[1].events[0] = second
    assert times_computed(traces, 3) == {0: 1, 2: 1}


def stretch(
    start: float, end: float, num_nodes: int, layout: str = "", predicted: float = 1.0
) -> Stretch:
    return Stretch(
        start=start,
        calm_until=end - 0.25,
        end=end,
        num_nodes=num_nodes,
        layout=layout,
        predicted_step_seconds=predicted,
    )


def test_possible_training_follows_the_plan_of_each_stretch() -> None:
    """Alike by the formula they are held against their own steps; another plan is no excuse."""
    stretches = [
        stretch(0.0, 12.0, 6, "six"),
        stretch(12.0, 24.0, 5, "quick", 1.5),
        stretch(24.0, 36.0, 5, "slow", 1.505),
        stretch(36.0, 48.0, 5, "not chosen", 1.6),
        stretch(48.0, 60.0, 5, "never calm", 1.5),
    ]
    undisturbed = {(6, "six"): 1.0, (5, "quick"): 2.0, (5, "slow"): 3.0, (5, "not chosen"): 4.0}
    step_seconds = step_seconds_of_plans({5: 1.5, 6: 1.0}, undisturbed)
    assert [step_seconds(each) for each in stretches] == [1.0, 2.0, 3.0, 2.0, 2.0]
    assert possible_steps(stretches, step_seconds) == 12 + 6 + 4 + 6 + 6


def test_calm_steps_are_those_at_the_end_of_stretches_in_one_generation() -> None:
    """A stretch whose last steps are of two plans tells nothing."""
    stretches = [stretch(0.0, 12.5, 6), stretch(12.5, 40.0, 5), stretch(40.0, 50.0, 6)]
    commits = {
        **{step: float(step) for step in range(1, 13)},
        **{step: 12.0 + 3.0 * (step - 12) for step in range(13, 18)},
        **{step: 27.0 + 2.0 * (step - 17) for step in range(18, 24)},
        **{step: 40.0 + step - 23 for step in range(24, 32)},
    }
    generations = {step: 1 + (step > 12) + (step > 17) + (step > 30) for step in commits}
    calm = calm_step_seconds(commits, generations, stretches)
    assert calm == {(6, ""): 1.0, (5, ""): 2.0}


def test_plans_of_the_same_stages_have_the_same_layout() -> None:
    """Whoever runs them, in whatever order."""
    one, other = plan_of(*KILL.plan.pipelines), plan_of(*KILL.plan.pipelines[::-1])
    assert layout(one) == layout(other) == "1 on 2, 1 on 2, 1 on 2"
