"""Plans for single losses are there before they are needed (planning.md 5)."""

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.scheduling.contingencies import Contingencies
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.fake_planner import FakePlanner
from unit.coordinator.simulation.world import World, running_world


async def world_that_plans_ahead(num_nodes: int = 4, *, plans_ahead: bool = True) -> World:
    world = World()
    world.planner.plans_ahead = plans_ahead
    await world.start(num_nodes)
    await world.submit()
    await world.train()
    return world


async def test_a_loss_needs_no_planner_where_its_plan_was_made_before() -> None:
    """No planning is on the critical path: not even a planner that is away is."""
    world = await world_that_plans_ahead()
    num_queries = len(world.planner.queries)
    world.planner.error = PlanariaError(ErrorReason.UNAVAILABLE, "no planner", {})
    world.begin_step()
    await world.kill_node("n1")
    await world.train()
    job = await world.job()
    assert job.state is JobState.RUNNING
    assert world.recoveries[-1].nodes_lost == ("n1",)
    asked = world.planner.queries[num_queries:]
    assert all(query.current is None or len(query.current.node_ids) < 4 for query in asked)


async def test_two_losses_at_once_are_another_question() -> None:
    world = await world_that_plans_ahead()
    num_queries = len(world.planner.queries)
    world.planner.is_open.clear()
    for node_id in ("n1", "n2"):
        world.agents.pop(node_id).disconnect()
    await world.advance(11)
    assert len(world.planner.queries) > num_queries
    world.planner.is_open.set()
    await world.train(2)
    assert world.recoveries[-1].nodes_lost == ("n1", "n2")


async def test_contingency_plans_follow_every_new_plan() -> None:
    """And again when losses have become much rarer than the plans were made for."""
    world = await world_that_plans_ahead()
    assert [len(query.nodes) for query in world.planner.questions_ahead] == [4]
    await world.kill_node("n3")
    await world.train(2)
    assert [len(query.nodes) for query in world.planner.questions_ahead] == [4, 3]
    world.clock.advance(600)
    await world.coordinator.flush()
    await world.settle()
    horizons = [query.horizon_seconds for query in world.planner.questions_ahead]
    assert len(horizons) == 3
    assert horizons[2] > 2 * horizons[1]


async def test_plans_that_were_interrupted_are_asked_for_again() -> None:
    """A node was to join while they were made, and did not."""
    planner = FakePlanner()
    planner.plans_ahead = True
    ahead = Contingencies(job_id="job", planner=planner, retry_seconds=0.1)
    world = await world_that_plans_ahead()
    (present,) = world.planner.questions_ahead
    ahead.ask(present)
    ahead.stop()
    ahead.ask(present)
    await world.settle()
    assert planner.questions_ahead
    num_asked = len(planner.questions_ahead)
    ahead.stop()
    ahead.ask(present)
    await world.settle()
    assert len(planner.questions_ahead) == num_asked, "they are all there"


async def test_a_planner_without_contingency_plans_disturbs_no_job() -> None:
    world = await running_world(4)
    world.begin_step()
    await world.kill_node("n1")
    await world.train()
    assert (await world.job()).state is JobState.RUNNING
