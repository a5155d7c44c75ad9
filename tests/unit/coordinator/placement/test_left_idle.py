"""A joiner that the planner leaves idle disturbs nobody, and is considered with the next change."""

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import World, running_world


async def left_idle_joiner() -> World:
    """n9 was let in, and with what it measured the planner would not use it any more."""
    world = await running_world(3)
    await world.add_node("n9", "prepare")
    world.planner.uses_joiners = False
    await world.release()
    assert world.event_types()[-1] == "plan_kept"
    world.planner.uses_joiners = True
    return world


async def test_a_joiner_that_the_planner_leaves_idle_changes_nothing() -> None:
    """It is told once, and not let in again and again, whatever the planner thinks of it alone."""
    world = await left_idle_joiner()
    generation = world.run.generation
    await world.train(2)
    await world.crash_coordinator()
    await world.reconnect()
    await world.train(2)
    assert world.run.generation == generation
    assert world.recoveries == []
    assert (await world.job()).step == 5


async def test_an_idle_node_is_considered_with_the_next_joiner() -> None:
    world = await left_idle_joiner()
    await world.add_node("n8")
    await world.train(2)
    assert len(world.members()) == 5
    assert world.run.left_idle == ()


async def test_a_joiner_of_no_use_does_not_have_the_idle_one_offered_again() -> None:
    world = await left_idle_joiner()
    world.planner.avoids = frozenset({"n8"})
    generation = world.run.generation
    await world.add_node("n8")
    await world.train(2)
    assert world.run.generation == generation


async def test_an_idle_node_is_considered_after_a_loss() -> None:
    world = await left_idle_joiner()
    await world.kill_node("n0")
    await world.train(3)
    assert {engine.id.split("/")[1] for engine in world.members()} == {"n1", "n2", "n9"}


async def test_an_idle_node_is_considered_when_a_node_is_drained() -> None:
    world = await left_idle_joiner()
    await world.coordinator.cluster.drain("n0")
    await world.settle()
    await world.train(3)
    assert {engine.id.split("/")[1] for engine in world.members()} == {"n1", "n2", "n9"}


async def test_an_idle_node_that_was_lost_joins_afresh() -> None:
    world = await left_idle_joiner()
    await world.kill_node("n9")
    await world.advance(20)
    await world.add_node("n9")
    await world.train(2)
    assert len(world.members()) == 4


async def test_a_joiner_that_no_plan_can_be_made_with_is_left_idle() -> None:
    """The planner refuses it with what was measured on it: who trains need not suffer."""
    world = await running_world(3)
    await world.add_node("n9", "prepare")
    world.planner.error = PlanariaError(ErrorReason.MODEL_DOES_NOT_FIT, "n9 is too small", {})
    await world.release()
    assert world.event_types()[-1] == "plan_kept"
    world.planner.error = None
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 3
