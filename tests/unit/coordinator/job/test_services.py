"""What users meet: submission, request ids, lists, watches, schedulers, and their errors."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.agents.agent_messages import LogLines
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import (
    NodesDecision,
    NodesQuestion,
    PlanDecision,
    PlanQuestion,
)
from planaria_coordinator.application.scheduling.policy import BuiltInPolicy
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.fake_planner import make_plan
from unit.coordinator.simulation.job_documents import job_document
from unit.coordinator.simulation.world import World, running_world

T = TypeVar("T")


async def take(items: AsyncIterator[T], count: int) -> list[T]:
    return [await anext(items) for _ in range(count)]


async def refusal(world: World, **changes: object) -> PlanariaError:
    with pytest.raises(PlanariaError) as caught:
        await world.coordinator.jobs.create(job_document(**changes))
    return caught.value


async def test_a_wrong_field_is_named() -> None:
    world = World()
    await world.start(2)
    error = await refusal(world, training={"step": 3})
    assert error.reason is ErrorReason.INVALID_JOB
    assert "did you mean steps?" in error.message
    assert not world.database.tables.jobs


async def test_a_fault_tolerance_that_is_impossible_now_is_refused_at_submission() -> None:
    world = World()
    await world.start(2)
    error = await refusal(world, resilience={"fault_tolerance": 2})
    assert error.reason is ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE


async def test_an_unknown_scheduler_is_refused() -> None:
    world = World()
    await world.start(2)
    error = await refusal(world, scheduler="mine")
    assert error.reason is ErrorReason.SCHEDULER_NOT_FOUND


async def test_a_dry_run_plans_and_stores_nothing() -> None:
    world = World()
    await world.start(3)
    submission = await world.coordinator.jobs.create(job_document(), dry_run=True)
    assert submission.plan is not None
    assert submission.plan.sizes == (1, 1, 1)
    assert submission.job.id == ""
    assert not world.database.tables.jobs


async def test_a_submission_that_is_repeated_is_one_job() -> None:
    world = World()
    await world.start(2)
    jobs = world.coordinator.jobs
    first = await jobs.create(job_document(), request_id="r1")
    again = await jobs.create(job_document(), request_id="r1")
    assert again.job.id == first.job.id
    with pytest.raises(PlanariaError) as caught:
        await jobs.create(job_document(name="other"), request_id="r1")
    assert caught.value.reason is ErrorReason.REQUEST_ID_REUSED


async def test_submissions_that_are_repeated_at_once_are_one_job() -> None:
    """A client that gives up waiting and sends again does not start two jobs."""
    world = World()
    await world.start(2)
    jobs = world.coordinator.jobs
    first, second = await asyncio.gather(
        jobs.create(job_document(), request_id="r1"),
        jobs.create(job_document(), request_id="r1"),
    )
    assert first.job.id == second.job.id
    assert len(world.database.tables.jobs) == 1


async def test_a_submission_whose_caller_goes_away_is_a_job_or_is_not() -> None:
    """Wherever the caller is when it goes: what is stored is run."""
    for num_turns in range(30):
        world = World()
        await world.start(2)
        jobs = world.coordinator.jobs
        asking = asyncio.create_task(jobs.create(job_document(), request_id="r1"))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        again = await jobs.create(job_document(), request_id="r1")
        await world.train()
        assert (await jobs.get(again.job.id)).state is JobState.RUNNING, num_turns
        assert len(world.database.tables.jobs) == 1
        await world.stop()


async def test_a_drain_whose_caller_goes_away_is_known_where_it_is_stored() -> None:
    for num_turns in range(20):
        world = World()
        await world.start(2)
        cluster = world.coordinator.cluster
        asking = asyncio.create_task(cluster.cordon("n0"))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await world.settle()
        assert (await cluster.get("n0")).state is world.database.tables.nodes["n0"].state
        await world.stop()


async def test_a_job_outlives_a_defect_in_planning() -> None:
    """It says what it waits for, and tries again by itself."""
    world = World()
    await world.start(2)
    world.planner.error = ZeroDivisionError("of ours")
    with pytest.raises(ZeroDivisionError):
        await world.coordinator.jobs.create(job_document())
    world.planner.error = None
    submission = await world.coordinator.jobs.create(job_document())
    world.planner.error = ZeroDivisionError("of ours")
    await world.advance(5)
    job = await world.coordinator.jobs.get(submission.job.id)
    assert job.state is JobState.PENDING
    world.planner.error = None
    await world.advance(5)
    assert (await world.coordinator.jobs.get(job.id)).state is JobState.RUNNING


async def test_a_job_that_has_ended_can_only_be_read() -> None:
    world = await running_world(2, training={"steps": 1})
    for change in (world.coordinator.jobs.pause, world.coordinator.jobs.resume):
        with pytest.raises(PlanariaError) as caught:
            await change(world.job_id)
        assert caught.value.reason is ErrorReason.WRONG_STATE
    with pytest.raises(PlanariaError, match="it has ended"):
        await world.coordinator.jobs.cancel(world.job_id)


async def test_every_node_and_every_unfinished_job_is_listed() -> None:
    """Every node, and every job that has not ended."""
    world = await running_world(2, training={"steps": 1})
    assert (await world.job()).state is JobState.SUCCEEDED
    second = await world.submit()
    assert [job.id for job in world.coordinator.jobs.unfinished()] == [second]
    assert [node.id for node in world.coordinator.cluster.all()] == ["n0", "n1"]


async def test_a_job_that_is_not_there_is_not_found() -> None:
    world = World()
    await world.start(1)
    jobs = world.coordinator.jobs
    lists = (
        partial(read, page=PageRequest()) for read in (jobs.metrics, jobs.recoveries, jobs.logs)
    )
    for read in (jobs.get, jobs.plan, jobs.cancel, *lists):
        with pytest.raises(PlanariaError) as caught:
            await read("job-0")
        assert caught.value.reason is ErrorReason.JOB_NOT_FOUND
    with pytest.raises(PlanariaError):
        await anext(jobs.watch("job-0"))


async def test_the_steps_are_listed_once_each_though_every_pipeline_reports_them() -> None:
    world = await running_world(3)
    await world.train(4)
    await world.coordinator.flush()
    page = await world.coordinator.jobs.metrics(world.job_id, PageRequest(page_size=3))
    assert [metrics.step for metrics in page.items] == [0, 1, 2]
    rest = await world.coordinator.jobs.metrics(
        world.job_id, PageRequest(page_token=page.next_page_token)
    )
    assert [metrics.step for metrics in rest.items] == [3, 4]
    job = await world.job()
    assert job.loss == pytest.approx(1 / 5)
    assert job.tokens_per_second == pytest.approx(128)


async def test_a_watcher_that_was_cut_off_misses_no_event() -> None:
    world = await running_world(2)
    events = world.coordinator.events
    seen = await take(events.watch(), 3)
    assert [event.sequence for event in seen] == [1, 2, 3]
    rest = events.watch(after_sequence=3)
    following = await take(rest, len(world.events) - 3)
    waiting = asyncio.ensure_future(anext(rest))
    await world.settle()
    assert not waiting.done()
    await world.kill_node("n1")
    assert (await waiting).sequence == following[-1].sequence + 1
    page = await events.list(PageRequest(page_size=2), job_id=world.job_id)
    assert [event.type for event in page.items] == ["job_submitted", "job_starting"]
    assert page.next_page_token == str(page.items[-1].sequence)
    await rest.aclose()  # type: ignore[attr-defined]


async def test_a_watched_job_is_seen_changing_until_it_ends() -> None:
    world = await running_world(2, training={"steps": 3})
    states = []

    async def watch() -> None:
        views = world.coordinator.jobs.watch(world.job_id)
        states.extend([(view.job.state, view.job.step) async for view in views])

    watching = asyncio.ensure_future(watch())
    await world.settle()
    await world.train(2)
    await watching
    assert states[0] == (JobState.RUNNING, 1)
    assert states[-1] == (JobState.SUCCEEDED, 3)


async def test_a_watcher_of_a_job_that_is_cut_off_anywhere_gets_every_event_once() -> None:
    """Whatever view it saw last, the coordinator's death included."""
    world = await running_world(3)
    seen: list[int] = []
    position = 0

    async def watch(num_views: int) -> None:
        nonlocal position
        views = world.coordinator.jobs.watch(world.job_id, after_sequence=position)
        for view in await take(views, num_views):
            seen.extend(event.sequence for event in view.events)
            position = view.sequence

    await watch(1)
    await world.kill_node("n1")
    await watch(1)
    await world.crash_coordinator()
    await world.reconnect()
    await world.train(2)
    await watch(1)
    await world.coordinator.jobs.cancel(world.job_id)
    await world.settle()
    await watch(1)

    expected = [event.sequence for event in world.events if event.job_id == world.job_id]
    assert seen == expected
    assert world.events[seen[-1] - 1].type == "job_cancelled"


async def test_a_watcher_that_has_seen_more_than_there_is_learns_it() -> None:
    """It watched another database; to wait for that number would be to miss all until then."""
    world = await running_world(2)
    newest = world.events[-1].sequence
    for views in (
        world.coordinator.jobs.watch(world.job_id, after_sequence=newest + 1),
        world.coordinator.events.watch(after_sequence=newest + 1),
    ):
        with pytest.raises(PlanariaError, match=f"must be at most {newest}, the newest") as caught:
            await anext(views)
        assert caught.value.metadata["field"] == "after_sequence"


async def test_the_plan_that_is_read_is_the_newest_that_was_used() -> None:
    world = World()
    await world.start(0)
    await world.submit(resources={"min_nodes": 2})
    assert await world.coordinator.jobs.plan(world.job_id) is None
    await world.add_node("n0")
    await world.add_node("n1")
    record = await world.coordinator.jobs.plan(world.job_id)
    assert record is not None
    assert record.plan is not None
    assert (record.generation, record.plan.sizes) == (1, (1, 1))


async def test_a_planner_that_is_away_is_waited_for() -> None:
    """Training stops, an event says why, and it continues by itself [11]."""
    world = await running_world(3)
    world.planner.error = PlanariaError(
        ErrorReason.UNAVAILABLE, "no planner answers", {"part": "planner"}
    )
    killed = asyncio.ensure_future(world.kill_node("n0"))
    for _ in range(200):
        await asyncio.sleep(0)
    assert "planner_unavailable" in world.event_types()
    world.planner.error = None
    await killed
    assert (await world.job()).state is JobState.RUNNING


async def test_readiness_names_the_part_that_does_not_answer() -> None:
    world = World()
    await world.start(0)
    await world.coordinator.check_ready()
    world.planner.error = PlanariaError(
        ErrorReason.UNAVAILABLE, "no planner answers", {"part": "planner"}
    )
    with pytest.raises(PlanariaError, match="no planner answers"):
        await world.coordinator.check_ready()


class Chooser(BuiltInPolicy):
    """A custom scheduler that takes the last nodes, and turns plans round."""

    def __init__(self) -> None:
        self.overruled = ""
        self.spoils_plans = False

    def knows(self, scheduler: str) -> bool:
        return True

    async def choose_nodes(self, question: NodesQuestion) -> NodesDecision:
        last = question.candidates[-question.min_nodes :]
        return NodesDecision(
            node_ids=tuple(node.id for node in last), reason="the last", overruled=self.overruled
        )

    async def choose_plan(self, question: PlanQuestion) -> PlanDecision:
        if self.spoils_plans:
            plan = replace(question.proposal, pipelines=question.proposal.pipelines[:1])
            return PlanDecision(plan=plan, reason="half of it")
        plan = make_plan([node.node_id for node in question.query.nodes][::-1], 2, 6, 8)
        return PlanDecision(plan=plan, reason="the other way round")


async def world_with_scheduler(policy: Chooser) -> World:
    world = World()
    world.policy = policy
    world.coordinator = world._new_coordinator()
    await world.start(4)
    await world.submit(scheduler="mine", resources={"max_nodes": 2})
    return world


async def test_a_custom_scheduler_decides_which_nodes_and_which_plan() -> None:
    world = await world_with_scheduler(Chooser())
    assert world.run.placement is not None
    assert world.run.placement.plan.node_ids == ("n3", "n2")
    assert world.run.placement.reason == "the other way round"


async def test_when_a_scheduler_is_overruled_an_event_says_so() -> None:
    policy = Chooser()
    policy.overruled = "scheduler mine was late"
    policy.spoils_plans = True
    world = await world_with_scheduler(policy)
    told = [e.message for e in world.events if e.type == "scheduler_overruled"]
    assert told == [
        "scheduler mine was late",
        "scheduler mine made a plan that cannot be carried out: pipelines.microbatches lack 1: "
        "must have each of the 8 microbatches exactly once",
    ]
    assert (await world.job()).state is JobState.RUNNING


class OnePipeline(BuiltInPolicy):
    """A scheduler that never takes more than one replica."""

    def knows(self, scheduler: str) -> bool:
        return True

    async def choose_plan(self, question: PlanQuestion) -> PlanDecision:
        node_ids = [node.node_id for node in question.query.nodes]
        return PlanDecision(plan=make_plan(node_ids, 1, 6, 8), reason="one is enough")


@pytest.mark.parametrize("least", [None, 0])
async def test_a_plan_that_survives_less_is_refused_unless_the_job_file_allows_it(
    least: int | None,
) -> None:
    """Then an event says that it survives less than was asked for."""
    world = World()
    world.policy = OnePipeline()
    world.coordinator = world._new_coordinator()
    await world.start(2)
    await world.submit(scheduler="mine", resilience={"min_fault_tolerance": least})
    told = [e.message for e in world.events if e.type == "scheduler_overruled"]
    if least is None:
        assert told == [
            "scheduler mine made a plan that cannot be carried out: pipelines: layer 0 is on "
            "1 node, must be on 2 (resilience.fault_tolerance)"
        ]
    assert (told == []) == (least == 0)
    reduced = [e.message for e in world.events if e.type == "fault_tolerance_reduced"]
    assert len(reduced) == (1 if least == 0 else 0)
    assert world.run.placement is not None
    assert world.run.placement.plan.fault_tolerance == (0 if least == 0 else 1)


async def test_log_lines_of_engines_are_kept_in_order() -> None:
    world = await running_world(2)
    agent = world.agents["n0"]
    engine = next(iter(agent.engines.values()))
    lines = LogLines(
        job_id=engine.job_id,
        engine_id=engine.id,
        lines=("first", "second"),
        read_time=world.clock.now(),
    )
    agent.say(lambda session: session.log_lines(lines))
    await world.coordinator.flush()
    page = await world.coordinator.jobs.logs(world.job_id, PageRequest())
    assert [(line.sequence, line.text) for line in page.items] == [(1, "first"), (2, "second")]


async def test_a_plan_that_the_planner_refuses_is_not_asked_for_again_and_again() -> None:
    """The job waits for one more node instead."""
    world = World()
    await world.start(2)
    world.hold("prepare")
    await world.submit(resources={"min_nodes": 2}, resilience={"fault_tolerance": 1})
    world.planner.min_size = 3
    await world.release()
    assert (await world.job()).state is JobState.PENDING
    assert world.event_types().count("job_starting") == 1
    world.planner.min_size = 1
    await world.add_node("n9")
    assert (await world.job()).state is JobState.RUNNING
