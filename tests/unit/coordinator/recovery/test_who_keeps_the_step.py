"""Which pipelines keep the step in flight, and what each of them runs of it."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.job import JobSpec
from planaria_coordinator.application.jobs.submission import requirements_of
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import FenceReport, HeldLayer, IdleGroup
from planaria_coordinator.domain.job.model_profile import slowest_stage_seconds
from planaria_coordinator.domain.job.requirements import Requirements
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.plan import Pipeline, Plan, Stage, same_pipelines
from planaria_coordinator.domain.placement.replicas import assign_engines
from planaria_coordinator.domain.recovery.activation import idle_groups
from planaria_coordinator.domain.recovery.finish_step import (
    Share,
    finishing_placement,
    kept_pipelines,
    microbatch_seconds,
    spread,
)
from unit.coordinator.simulation.fake_planner import make_plan
from unit.coordinator.simulation.job_documents import job_document

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_group_is_kept_where_all_its_members_name_it() -> None:
    """Guard: the count of those who do. What one of them has begun there, others would wait for."""
    three, two = IdleGroup(id="owners-0", size=3), IdleGroup(id="last-ranks", size=2)
    reports = [
        FenceReport(
            committed_steps=3,
            last_commit=None,
            layers=(),
            finished_microbatches=(),
            step_compute_seconds=0.0,
            fence_time=NOON,
            park_time=None,
            idle_groups=idle,
        )
        for idle in [(three, two), (two, three), (), (three,)]
    ]
    assert idle_groups(reports) == ("last-ranks", "owners-0")
    assert idle_groups(reports[:3]) == ("last-ranks",)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0.01, 9), st.integers(0, 9) | st.just(math.inf)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 30),
)
def test_the_pool_is_spread_so_that_the_last_one_is_ready_first(
    pipelines: list[tuple[int, float, float]], num_lost: int
) -> None:
    """Each microbatch goes to one that has room, and moving any would not end the step earlier."""
    shares = [
        Share(num_remaining=n, seconds_per_microbatch=s, room=room) for n, s, room in pipelines
    ]
    num_lost = int(min(num_lost, sum(share.room for share in shares)))
    given_to = spread(range(num_lost), shares)
    assert sorted(m for microbatches in given_to for m in microbatches) == list(range(num_lost))
    ends = [
        (share.num_remaining + len(mine)) * share.seconds_per_microbatch
        for share, mine in zip(shares, given_to, strict=True)
    ]
    for end, share, mine in zip(ends, shares, given_to, strict=True):
        others = [
            e + s.seconds_per_microbatch
            for e, s, theirs in zip(ends, shares, given_to, strict=True)
            if len(theirs) < s.room
        ]
        assert len(mine) <= share.room
        if mine and others:
            assert end <= min(others) + 1e-6 or end == pytest.approx(min(others))
            assert share.seconds_per_microbatch > 0


def pipeline_of(
    nodes: str, cuts: tuple[int, ...], *, microbatches: tuple[int, ...], iteration_seconds: float
) -> Pipeline:
    """A pipeline with one stage per node, of so many layers each."""
    stages = tuple(
        Stage(
            first_layer=sum(cuts[:index]),
            num_layers=cuts[index],
            node_index=index,
            node_id=node_id,
            accelerators=(0,),
        )
        for index, node_id in enumerate(nodes)
    )
    return Pipeline(stages=stages, microbatches=microbatches, iteration_seconds=iteration_seconds)


def requirements() -> Requirements:
    return requirements_of(JobSpec.model_validate(job_document()), "secret")


ENGINES = {
    name: Engine(id=name, node_id=name, accelerator=0, prepared=True, data_address=f"data:{name}")
    for name in "abcd"
}


PLAN = make_plan("abcd", 2, 6, 8)
"""Pipelines a-c and b-d, with the even and the odd microbatches."""


PLACEMENT = Placement(
    generation=5, plan=PLAN, stage_engines=assign_engines(PLAN, ENGINES.values()), reason=""
)


HOLDINGS = {"a": (0, 1, 2), "b": (0, 1, 2), "c": (3, 4, 5), "d": (3, 4, 5)}
EVEN = (0, 2, 4, 6)
ODD = (1, 3, 5, 7)


def report(
    *,
    steps: int = 7,
    applied: int = 5,
    kept: tuple[int, ...] = EVEN,
    finished: tuple[int, ...] = (),
    parked: bool = False,
    microbatch_seconds: float = 0.0,
) -> FenceReport:
    return FenceReport(
        committed_steps=steps,
        last_commit=None,
        layers=(HeldLayer(layer=0, version=steps),),
        finished_microbatches=finished,
        step_compute_seconds=1.0,
        fence_time=NOON,
        park_time=NOON if parked else None,
        applied_generation=applied,
        kept_microbatches=() if parked else kept,
        microbatch_seconds=microbatch_seconds,
    )


def kept(
    reports: dict[str, FenceReport], placement: Placement = PLACEMENT
) -> list[tuple[int, ...]]:
    survivors = {name: HOLDINGS[name] for name in reports}
    found = kept_pipelines(placement, reports, survivors, 7, requirements())
    return [pipeline.microbatches for pipeline in found]


def test_a_healthy_pipeline_keeps_the_microbatches_it_reports() -> None:
    assert kept({"a": report(), "c": report(), "d": report(parked=True)}) == [EVEN]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (report(), None, "one of its engines is gone"),
        (report(), report(parked=True), "one is parked"),
        (report(), report(applied=6), "they have done different numbers of exchanges"),
        (report(), report(steps=6), "one has committed, the other has been told to"),
        (report(), report(kept=(0, 2)), "they do not agree on what they have"),
        (report(kept=()), report(kept=()), "there is nothing to keep"),
        (report(applied=4), report(applied=4), "it was another pipeline that they ran"),
    ],
)
def test_a_broken_pipeline_keeps_nothing(
    first: FenceReport, second: FenceReport | None, why: str
) -> None:
    reports = {"a": first} if second is None else {"a": first, "c": second}
    assert kept(reports) == [], why


def test_an_unchanged_pipeline_may_report_an_older_generation() -> None:
    """Its engines have done equally many exchanges, whichever Activate they applied last."""
    placement = Placement(
        generation=5,
        plan=PLAN,
        stage_engines=PLACEMENT.stage_engines,
        reason="",
        first_generations=(3, 3),
    )
    assert kept({"a": report(applied=4), "c": report(applied=4)}, placement) == [EVEN]
    assert kept({"a": report(applied=2), "c": report(applied=2)}, placement) == []


def test_a_pipeline_that_rolls_forward_runs_its_share_of_the_next_step() -> None:
    """What it had of the step before is committed: nothing of that is kept."""
    stale = (1, 3)
    assert kept({"a": report(steps=6, kept=stale), "c": report(steps=6, kept=stale)}) == [EVEN]


def test_a_pipeline_whose_layers_are_stale_keeps_nothing() -> None:
    reports = {"a": report(), "c": report()}
    holdings = {"a": (0, 1, 2), "c": (3, 4)}
    assert kept_pipelines(PLACEMENT, reports, holdings, 7, requirements()) == ()


@pytest.mark.parametrize(
    ("seconds", "measured"),
    [
        ((0.1, 0.3, 0.2, 0.1), (0.3, 0.2)),  # the slowest stage's
        ((0.1, 0.0, 0.2, 0.1), None),  # one has not computed a step in its place
    ],
)
def test_a_pipeline_is_as_fast_as_measured_where_all_are(
    seconds: tuple[float, ...], measured: tuple[float, ...] | None
) -> None:
    reports = {
        name: report(kept=EVEN if name in "ac" else ODD, microbatch_seconds=each)
        for name, each in zip("acbd", seconds, strict=True)
    }
    found = kept_pipelines(PLACEMENT, reports, HOLDINGS, 7, requirements())
    layers = requirements().layers
    profiled = tuple(slowest_stage_seconds(layers, p.stages) for p in PLAN.pipelines)
    assert microbatch_seconds(found, PLAN, layers) == (measured or profiled)


def test_lost_microbatches_go_to_quick_pipelines() -> None:
    """Of three pipelines the last one is broken, and the first takes six times as long."""
    engines = {
        name: Engine(id=name, node_id=name, accelerator=0, prepared=True, data_address=name)
        for name in "abcdef"
    }
    plan = make_plan("abcdef", 3, 6, 8)
    stage_engines = assign_engines(plan, engines.values())
    placement = Placement(generation=5, plan=plan, stage_engines=stage_engines, reason="")
    reports = {
        engine_id: report(kept=pipeline.microbatches, microbatch_seconds=seconds)
        for pipeline, place, seconds in zip(plan.pipelines, stage_engines, (0.6, 0.1), strict=False)
        for engine_id in place
    }
    holdings = {engine_id: tuple(range(6)) for engine_id in reports}
    found = kept_pipelines(placement, reports, holdings, 7, requirements())
    target = finishing_placement(placement, found, holdings, engines, requirements(), generation=6)
    assert target.step_microbatches == ((0, 3, 6), (1, 2, 4, 5, 7))


SLOW_END = pipeline_of("abc", (1, 1, 4), microbatches=(0, 3, 6, 9), iteration_seconds=18.0)
EVEN_STAGES = pipeline_of("def", (2, 2, 2), microbatches=(1, 4, 7, 10), iteration_seconds=12.0)
BROKEN = pipeline_of("ghi", (2, 2, 2), microbatches=(2, 5, 8, 11), iteration_seconds=12.0)
"""Has lost an engine."""


def finished_by(*healthy: Pipeline) -> Placement:
    """What follows the loss of BROKEN if nothing was measured and a layer takes a second."""
    layer = replace(requirements().layers[0], forward_seconds=0.25, backward_seconds=0.75)
    needs = replace(requirements(), num_microbatches=4 * len(healthy) + 4, layers=(layer,) * 6)
    plan = Plan(pipelines=(*healthy, BROKEN))
    engines = {
        name: Engine(id=name, node_id=name, accelerator=0, prepared=True, data_address=name)
        for name in plan.node_ids
    }
    stage_engines = assign_engines(plan, engines.values())
    placement = Placement(generation=5, plan=plan, stage_engines=stage_engines, reason="")
    reports = {
        name: report(kept=pipeline.microbatches)
        for pipeline in healthy
        for name in pipeline.node_ids
    }
    holdings = {name: tuple(range(6)) for name in reports}
    found = kept_pipelines(placement, reports, holdings, 7, needs)
    return finishing_placement(placement, found, holdings, engines, needs, generation=6)


def test_a_microbatch_costs_what_its_slowest_stage_takes() -> None:
    """T = a + b*m: four more microbatches cost 4 s each on stages of 1, 1 and 4 s."""
    mine = replace(SLOW_END, microbatches=(0, 1, 3, 4))
    assert finished_by(mine).plan.iteration_seconds == pytest.approx(18 + 4 * 4)


def test_lost_microbatches_go_where_the_slowest_stage_is_quicker() -> None:
    """Until all pipelines are measured. One more would take 4 s, the other is ready in 2 s each."""
    target = finished_by(SLOW_END, EVEN_STAGES)
    assert target.step_microbatches == ((0, 3, 6, 9), (1, 2, 4, 5, 7, 8, 10, 11))
    assert [p.iteration_seconds for p in target.plan.pipelines] == pytest.approx([18, 12 + 4 * 2])


def test_a_step_time_that_nobody_predicted_stays_unknown() -> None:
    """A custom scheduler may give none; the shares come from the model's profile all the same."""
    of_scheduler = [replace(p, iteration_seconds=0.0) for p in (SLOW_END, EVEN_STAGES)]
    target = finished_by(*of_scheduler)
    assert target.step_microbatches == finished_by(SLOW_END, EVEN_STAGES).step_microbatches
    assert target.plan.iteration_seconds == 0.0


@pytest.mark.parametrize(
    ("room_of_a", "room_of_b", "shares"),
    [
        (0, 0, ((0, 2, 3, 6), (1, 4, 5, 7))),
        (3, 0, ((0, 3, 6), (1, 2, 4, 5, 7))),
        (3, 5, ((0, 3, 6), (1, 2, 4, 5, 7))),
        (3, 4, None),
    ],
)
def test_no_pipeline_is_given_more_than_fits_in_its_memory(
    room_of_a: int, room_of_b: int, shares: tuple[tuple[int, ...], ...] | None
) -> None:
    """Guard: the most that the planner says; 0, as mostly, for no limit."""
    engines = {
        name: Engine(id=name, node_id=name, accelerator=0, prepared=True, data_address=name)
        for name in "abcdef"
    }
    plan = make_plan("abcdef", 3, 6, 8)
    pipelines = tuple(
        replace(pipeline, max_microbatches=most)
        for pipeline, most in zip(plan.pipelines, (room_of_a, room_of_b, 0), strict=True)
    )
    stage_engines = assign_engines(plan, engines.values())
    placement = Placement(
        generation=5,
        plan=replace(plan, pipelines=pipelines),
        stage_engines=stage_engines,
        reason="",
    )
    reports = {
        engine_id: report(kept=pipeline.microbatches)
        for pipeline, place in zip(plan.pipelines, stage_engines[:2], strict=False)
        for engine_id in place
    }
    holdings = {engine_id: tuple(range(6)) for engine_id in reports}
    found = kept_pipelines(placement, reports, holdings, 7, requirements())
    assert bool(found) is (shares is not None), "else all are parked and planned again"
    if found:
        target = finishing_placement(
            placement, found, holdings, engines, requirements(), generation=6
        )
        assert target.step_microbatches == shares
        assert tuple(p.microbatches for p in target.plan.pipelines) == shares


def test_the_placement_that_finishes_the_step_runs_everything_once() -> None:
    found = kept_pipelines(PLACEMENT, {"a": report(), "c": report()}, HOLDINGS, 7, requirements())
    survivors = {name: HOLDINGS[name] for name in "acd"}
    engines = {name: ENGINES[name] for name in "acd"}
    target = finishing_placement(PLACEMENT, found, survivors, engines, requirements(), generation=6)
    assert target.stage_engines == (("a", "c"),)
    assert target.step_microbatches == (tuple(range(8)),)
    assert target.plan.pipelines[0].microbatches == tuple(range(8))
    assert target.followers == {"d": (3, 4, 5)}
    assert target.engine_ids == {"a", "c", "d"}
    assert target.plan.fault_tolerance == 0
    assert target.plan_before == PLAN
    assert target.first_generation(0) == 5
    assert same_pipelines(make_plan("ac", 1, 6, 8), target.plan)
