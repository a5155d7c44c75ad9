"""A loss in the middle of a step: whole pipelines finish it, the others get places behind it."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.job import JobSpec
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.agents import EngineFault
from planaria_coordinator.application.submission import requirements_of
from planaria_coordinator.domain.directive import Activate, Failure, FenceReport, HeldLayer
from planaria_coordinator.domain.finish_step import (
    Share,
    finishing_placement,
    kept_pipelines,
    same_pipelines,
    seconds_per_microbatch,
    spread,
)
from planaria_coordinator.domain.job import JobState
from planaria_coordinator.domain.replicas import assign_places
from planaria_coordinator.domain.requirements import Requirements
from planaria_coordinator.domain.run import Engine, Phase, Placement
from unit.coordinator.fakes import job_document, make_plan
from unit.coordinator.sim_engine import SimEngine
from unit.coordinator.simulation import World, running_world

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


# -- sharing out the pool ----------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 9)), min_size=1, max_size=5),
    st.integers(0, 30),
)
def test_the_pool_is_spread_so_that_the_last_one_is_ready_first(
    pipelines: list[tuple[int, float]], num_lost: int
) -> None:
    """Each microbatch goes to one pipeline, and moving any would not end the step earlier."""
    shares = [Share(num_left=n, seconds_per_microbatch=s) for n, s in pipelines]
    given_to = spread(range(num_lost), shares)
    assert sorted(m for microbatches in given_to for m in microbatches) == list(range(num_lost))
    ends = [
        (share.num_left + len(mine)) * share.seconds_per_microbatch
        for share, mine in zip(shares, given_to, strict=True)
    ]
    for end, share, mine in zip(ends, shares, given_to, strict=True):
        others = [e + s.seconds_per_microbatch for e, s in zip(ends, shares, strict=True)]
        if mine:
            assert end <= min(others) + 1e-6 or end == pytest.approx(min(others))
            assert share.seconds_per_microbatch > 0


# -- who keeps the step ------------------------------------------------------------------------


def requirements() -> Requirements:
    return requirements_of(JobSpec.model_validate(job_document()), "secret")


ENGINES = {
    name: Engine(id=name, node_id=name, accelerator=0, prepared=True, data_address=f"data:{name}")
    for name in "abcd"
}
PLAN = make_plan("abcd", 2, 6, 8)
"""Pipelines a-c and b-d, with the even and the odd microbatches."""
PLACEMENT = Placement(
    generation=5, plan=PLAN, places=assign_places(PLAN, ENGINES.values()), reason=""
)
HOLDINGS = {"a": (0, 1, 2), "b": (0, 1, 2), "c": (3, 4, 5), "d": (3, 4, 5)}
EVEN = (0, 2, 4, 6)


def report(
    *,
    steps: int = 7,
    applied: int = 5,
    kept: tuple[int, ...] = EVEN,
    finished: tuple[int, ...] = (),
    parked: bool = False,
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
    )


def kept(
    reports: dict[str, FenceReport], placement: Placement = PLACEMENT
) -> list[tuple[int, ...]]:
    survivors = {name: HOLDINGS[name] for name in reports}
    found = kept_pipelines(placement, reports, survivors, 7, requirements())
    return [pipeline.microbatches for pipeline in found]


def test_a_whole_pipeline_keeps_what_it_says_it_has() -> None:
    assert kept({"a": report(), "c": report(), "d": report(parked=True)}) == [EVEN]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (report(), None, "one of its engines is gone"),
        (report(), report(parked=True), "one stands still"),
        (report(), report(applied=6), "they have done different numbers of exchanges"),
        (report(), report(steps=6), "one has committed, the other has been told to"),
        (report(), report(kept=(0, 2)), "they do not agree on what they have"),
        (report(kept=()), report(kept=()), "there is nothing to keep"),
        (report(applied=4), report(applied=4), "it was another pipeline that they ran"),
    ],
)
def test_a_pipeline_that_is_not_quite_whole_keeps_nothing(
    first: FenceReport, second: FenceReport | None, why: str
) -> None:
    reports = {"a": first} if second is None else {"a": first, "c": second}
    assert kept(reports) == [], why


def test_a_pipeline_unchanged_since_an_older_generation_may_not_have_heard_of_the_newest() -> None:
    """Its engines have done equally many exchanges, whichever Activate they applied last."""
    placement = Placement(
        generation=5, plan=PLAN, places=PLACEMENT.places, reason="", first_generations=(3, 3)
    )
    assert kept({"a": report(applied=4), "c": report(applied=4)}, placement) == [EVEN]
    assert kept({"a": report(applied=2), "c": report(applied=2)}, placement) == []


def test_a_pipeline_that_is_told_the_end_of_its_step_runs_its_share_of_the_next() -> None:
    """What it had of the step before is committed: nothing of that is kept."""
    stale = (1, 3)
    assert kept({"a": report(steps=6, kept=stale), "c": report(steps=6, kept=stale)}) == [EVEN]


def test_a_pipeline_whose_layers_are_stale_keeps_nothing() -> None:
    reports = {"a": report(), "c": report()}
    holdings = {"a": (0, 1, 2), "c": (3, 4)}
    assert kept_pipelines(PLACEMENT, reports, holdings, 7, requirements()) == ()


def test_the_placement_that_finishes_the_step_runs_everything_once() -> None:
    found = kept_pipelines(PLACEMENT, {"a": report(), "c": report()}, HOLDINGS, 7, requirements())
    survivors = {name: HOLDINGS[name] for name in "acd"}
    engines = {name: ENGINES[name] for name in "acd"}
    target = finishing_placement(PLACEMENT, found, survivors, engines, requirements(), generation=6)
    assert target.places == (("a", "c"),)
    assert target.step_microbatches == (tuple(range(8)),)
    assert target.plan.pipelines[0].microbatches == tuple(range(8))
    assert target.followers == {"d": (3, 4, 5)}
    assert target.engine_ids == {"a", "c", "d"}
    assert target.plan.fault_tolerance == 0
    assert target.plan_before == PLAN
    assert target.first_generation(0) == 5
    assert seconds_per_microbatch(target.plan.pipelines[0]) == pytest.approx(
        seconds_per_microbatch(PLAN.pipelines[0])
    )
    assert same_pipelines(make_plan("ac", 1, 6, 8), target.plan)


# -- the whole story ---------------------------------------------------------------------------


async def pairs(num_nodes: int = 6, **changes: object) -> World:
    """Pipelines of two nodes: n0-n3, n1-n4, n2-n5."""
    return await running_world(num_nodes, resources={"min_nodes_per_pipeline": 2}, **changes)


def engine_on(world: World, node_id: str) -> SimEngine:
    return next(iter(world.agents[node_id].engines.values()))


async def test_only_the_wounded_stop_and_get_places_behind_the_step() -> None:
    """One loss, two generations, one story [1, 2, 8, 9]."""
    world = await pairs()
    world.clock.advance(0.5)
    world.begin_step()
    await world.kill_node("n0")

    assert (await world.job()).state is JobState.RECOVERING
    assert world.recoveries == []
    place = engine_on(world, "n1").place
    assert isinstance(place, Activate)
    assert [f.engine_id for f in place.followers] == [engine_on(world, "n3").id]
    assert [p.keeps_step for p in place.pipelines] == [True, True]
    assert sorted(m for p in place.pipelines for m in p.step_microbatches) == list(range(8))
    assert engine_on(world, "n1").gradients == {1, 4, 7}
    assert engine_on(world, "n3").gradients == set()

    world.clock.advance(2.0)
    await world.train()
    job = await world.job()
    assert (job.state, job.step) == (JobState.RUNNING, 2)
    assert len(world.members()) == 5
    assert not any(e.place and e.place.followers for e in world.members())
    (recovery,) = world.recoveries
    assert recovery.cause == "node_lost"
    assert recovery.pause_seconds == pytest.approx(3.0)
    assert recovery.lost_accelerator_seconds["idle"] == pytest.approx(3.0)
    assert recovery.lost_accelerator_seconds["redone"] == 1.0
    assert recovery.redone_microbatches == 3
    assert (recovery.pipeline_sizes_before, recovery.pipeline_sizes_after) == ((2, 2, 2), (3, 2))
    names = [phase.name for phase in recovery.phases]
    assert len(names) == len(set(names))
    assert {"quiesce", "plan", "rebuild", "resume", "copy"} <= set(names)
    told = [e.message for e in world.events if e.type == "step_finished_by"]
    assert told == [
        "step 1 is finished by 2 pipelines of 2 nodes: 5 of 8 microbatches kept, 3 dealt out anew"
    ]
    totals = (await world.job()).time_seconds
    wall_seconds = (world.clock.now() - job.create_time).total_seconds()
    assert sum(totals.values()) == pytest.approx(wall_seconds)
    await world.stop()


async def test_the_second_change_waits_for_the_planner_while_training_goes_on() -> None:
    """A planner that is slow, or away, stops nobody [8, 10]."""
    world = await pairs()
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    assert world.run.transition is not None
    assert world.run.transition.phase is Phase.PLANNING
    world.planner.is_open.set()
    world.planner.error = PlanariaError(ErrorReason.UNAVAILABLE, "no planner", {})
    for _ in range(3):
        world.clock.advance(1.0)
        world.pass_exchange(world.begin_step())
    assert {e.committed_steps for e in world.members()} == {4}
    world.planner.error = None
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.recoveries) == 1
    await world.stop()


async def test_the_planner_is_asked_once_and_before_anyone_has_reported() -> None:
    world = await pairs()
    for agent in world.agents.values():
        agent.held_kinds.add("quiesce")
    num_queries = len(world.planner.queries)
    world.begin_step()
    await world.kill_node("n0")
    assert len(world.planner.queries) == num_queries + 1
    assert world.planner.queries[-1].current is not None
    assert world.planner.queries[-1].current.sizes == (2, 2, 2)
    for agent in world.agents.values():
        agent.release()
    await world.settle()
    await world.train()
    assert len(world.recoveries) == 1
    # Scheduling looks for nodes to grow by; the recovery itself asks nothing more.
    asked = [q for q in world.planner.queries[num_queries + 1 :] if q.current is not None]
    assert all(q.current is not None and q.current.sizes == (3, 2) for q in asked)
    await world.stop()


@pytest.mark.parametrize("node_id", ["n1", "n3", "n5"])
async def test_another_loss_while_the_step_is_finished_keeps_what_is_still_whole(
    node_id: str,
) -> None:
    """A keeper or a follower: the newest generation wins, and the story goes on [4, 5]."""
    world = await pairs(resilience={"fault_tolerance": 2})
    world.begin_step()
    await world.kill_node("n0")
    world.begin_step()
    await world.kill_node(node_id)
    told = [e.details for e in world.events if e.type == "step_finished_by"]
    assert len(told) == 2
    assert told[1]["kept_microbatches"] == {"n1": 3, "n3": 8, "n5": 5}[node_id]
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    (recovery,) = world.recoveries
    assert recovery.nodes_lost == ("n0", node_id)
    await world.stop()


async def test_an_activate_that_only_one_engine_of_a_pipeline_heard_breaks_the_pipeline() -> None:
    """It has promised one exchange more than its neighbour: the count would not come out even."""
    world = await pairs(resilience={"fault_tolerance": 2})
    world.begin_step()
    world.agents["n4"].held_kinds.add("activate")
    await world.kill_node("n0")
    await world.kill_node("n3")
    told = [e.details for e in world.events if e.type == "step_finished_by"]
    assert [d["kept_microbatches"] for d in told] == [5, 3]
    assert told[1]["followers"] == sorted(engine_on(world, n).id for n in ("n1", "n4"))
    world.agents["n4"].release()
    await world.settle()
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    await world.stop()


async def test_pipelines_one_step_behind_roll_forward_and_run_the_next_step() -> None:
    """The witness comes first; then everyone computes its share of the new step [2]."""
    world = await pairs()
    world.begin_step()
    world.pass_exchange([engine_on(world, "n1"), engine_on(world, "n4")])
    await world.kill_node("n0")
    assert "step_rolled_forward" in world.event_types()
    assert {e.committed_steps for e in world.engines().values()} == {2}
    members = world.begin_step()
    assert len(members) == 5
    world.pass_exchange(members)
    await world.settle()
    assert (await world.job()).state is JobState.RUNNING
    assert world.recoveries[-1].redone_microbatches == 0
    await world.stop()


async def test_a_pause_wanted_while_the_step_is_finished_comes_behind_it() -> None:
    world = await pairs()
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    await world.coordinator.jobs.pause(world.job_id)
    await world.settle()
    await world.train(2)
    job = await world.job()
    assert (job.state, job.step) == (JobState.PAUSED, 2)
    world.planner.is_open.set()
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()
    await world.train()
    assert (await world.job()).step == 3
    await world.stop()


async def test_the_last_step_needs_no_new_plan() -> None:
    """A planner that is away does not keep a job from its end."""
    world = await pairs(training={"steps": 2})
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    await world.train()
    await world.settle()
    assert (await world.job()).state is JobState.SUCCEEDED
    await world.stop()


@pytest.mark.parametrize("kind", ["quiesce", "commit", "activate", ""])
async def test_a_crash_of_the_coordinator_collects_again_and_keeps_the_step(kind: str) -> None:
    """Whatever was under way, what whole pipelines have computed stays [7]."""
    world = await pairs()
    for agent in world.agents.values():
        agent.held_kinds.add(kind)
    world.begin_step()
    if kind == "commit":
        world.pass_exchange([engine_on(world, "n1"), engine_on(world, "n4")])
    await world.kill_node("n0")
    await world.crash_coordinator()
    await world.reconnect()
    for agent in world.agents.values():
        agent.release()
    await world.settle()
    told = [e.details for e in world.events if e.type == "step_finished_by"]
    assert told[-1]["kept_microbatches"] == (5 if kind else 8)
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 5
    assert [r.nodes_lost for r in world.recoveries] == [("n0",)]
    await world.stop()


async def test_groups_that_break_while_the_planner_is_asked_are_built_anew() -> None:
    """Nobody died, and yet nobody can sum: everyone is collected once more."""
    world = await pairs()
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    engine = engine_on(world, "n1")
    fault = EngineFault(
        job_id=engine.job_id,
        engine_id=engine.id,
        generation=engine.place_generation,
        failure=Failure(reason=ErrorReason.UNAVAILABLE, message="a sum broke"),
        fatal=False,
        detect_time=world.clock.now(),
    )
    world.agents["n1"].say(lambda session: session.engine_fault(fault))
    await world.settle()
    world.planner.is_open.set()
    await world.advance(1)
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    (recovery,) = world.recoveries
    assert recovery.nodes_lost == ("n0",)
    await world.stop()


async def test_an_engine_that_hangs_while_the_planner_is_away_is_found() -> None:
    """Training goes on beside the planner's absence, and so does looking after it [10]."""
    world = await pairs(resilience={"fault_tolerance": 2})
    world.planner.is_open.clear()
    world.begin_step()
    await world.kill_node("n0")
    world.agents["n1"].held_kinds = {"quiesce"}
    await world.advance(20)
    lost = [e for e in world.events if e.type == "engine_lost"]
    assert [e.node_id for e in lost] == ["n1"]
    world.agents["n1"].release()
    world.planner.is_open.set()
    await world.settle()
    await world.train(5)
    assert (await world.job()).state is JobState.RUNNING
    await world.stop()
