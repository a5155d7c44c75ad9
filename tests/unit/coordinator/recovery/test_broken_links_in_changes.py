"""Links that fail while the plan changes: a node joins, or the next plan is staged."""

import pytest

from planaria_coordinator.domain.engines.links import LinkFailure
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.recovery.test_broken_links import (
    ENDED,
    STALLED,
    left_out,
    others,
    refuse_to_activate,
    refuse_what_is_held,
    say,
)
from unit.coordinator.simulation.handover_world import switching_join
from unit.coordinator.simulation.world import World, running_world


async def test_a_joining_node_that_others_cannot_reach_disturbs_nobody() -> None:
    """Guard: `_choose_to_leave_out`; all would be parked for the change."""
    world = await running_world(5)
    generation = world.run.placement.generation if world.run.placement else 0
    world.hold("stage_plan")
    await world.add_node("n9", "stage_plan")
    await world.settle()
    assert world.phase is Phase.STAGING
    for node_id in others(world, "n9"):
        say(world, node_id, ["n9"], STALLED)
    for agent in world.agents.values():
        refuse_what_is_held(agent)
    await world.settle()
    assert left_out(world) == ["n9"]
    assert world.run.transition is None
    assert world.run.placement is not None
    assert world.run.placement.generation == generation
    await world.train(2)
    assert len(world.members()) == 5


async def test_a_training_node_without_which_a_plan_cannot_be_staged_is_left_out() -> None:
    """Guard: `_choose_to_leave_out`; parked, the engines would not reach each other either."""
    world = await running_world(5)
    world.hold("stage_plan")
    await world.add_node("n9", "stage_plan")
    await world.settle()
    for node_id in others(world, "n3"):
        say(world, "n3", [node_id], STALLED)
    for agent in world.agents.values():
        refuse_what_is_held(agent)
    await world.settle()
    assert left_out(world) == ["n3"]
    assert not any("parked" in event.message for event in world.events)
    await world.train(2)
    assert len(world.members()) == 5


async def test_nobody_that_trains_makes_way_for_a_node_that_joins() -> None:
    """Only the new plan needs the link: the present one goes on. Guard: `_choose_to_leave_out`."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    before = set(world.engines())
    world.hold("stage_plan")
    await world.add_node("n9", "stage_plan")
    assert world.phase is Phase.STAGING
    say(world, "n1", ["n2"], STALLED)
    await world.train(1)
    for agent in world.agents.values():
        refuse_what_is_held(agent)
    await world.settle()
    assert left_out(world) == ["n9"]
    assert world.run.transition is None
    await world.train(2)
    assert {engine.id for engine in world.members()} == before


async def parked_join() -> World:
    """All are parked for a plan with n9, since it could not be staged, and are to activate it."""
    world = await running_world(
        2, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 0}
    )
    world.hold("stage_plan")
    await world.add_node("n9", "stage_plan")
    for agent in world.agents.values():
        refuse_what_is_held(agent)
    world.hold("activate")
    await world.train(2)
    assert world.phase is Phase.ACTIVATING
    return world


async def test_a_joining_node_without_which_the_new_plan_is_none_is_left_out() -> None:
    """All are parked for it, and the others hold every layer. Guard: `choose_joining`."""
    world = await parked_join()
    say(world, "n1", ["n9"], STALLED)
    await world.settle()
    await refuse_to_activate(world)
    assert left_out(world) == ["n9"]
    assert "job_waiting" not in world.event_types()
    await world.release()
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_joining_node_whose_engine_is_lost_keeps_nobody_parked() -> None:
    """There is nothing of it to leave out. Guard: `joining_nodes`."""
    world = await parked_join()
    world.agents["n9"].lose_engine(world.engine_on("n9").id)
    await world.settle()
    for _ in range(3):
        await refuse_to_activate(world)
    await world.release()
    await world.advance(3)
    assert (await world.job()).state is JobState.RUNNING
    assert left_out(world) == []
    await world.train(2)


async def test_a_switch_that_dies_while_a_plan_is_staged_costs_nobody() -> None:
    """Guard: `is_likely`."""
    world = await running_world(6)
    world.hold("stage_plan")
    await world.add_node("n9", "stage_plan")
    before = set(world.engines())
    for node_id in world.agents:
        say(world, node_id, others(world, node_id), STALLED)
    for agent in world.agents.values():
        refuse_what_is_held(agent)
    await world.advance(3)
    assert set(world.engines()) == before
    await world.train(2)
    assert len(world.members()) == 7


@pytest.mark.parametrize("failure", [ENDED, STALLED])
async def test_nobody_is_left_out_without_whom_the_next_plan_lacks_a_layer(
    failure: LinkFailure,
) -> None:
    """Until all have switched, either plan may be in force. Guard: every placement counts."""
    world = await running_world(2, resilience={"fault_tolerance": 0})
    world.planner.min_size = 2  # one pipeline of three takes the place of two
    await switching_join(world)
    before = set(world.engines())
    await world.commit_unreported()  # all have switched, and nobody knows
    assert world.phase is Phase.SWITCHING
    say(world, "n0", ["n1"], failure)
    await world.advance(3)
    assert set(world.engines()) == before
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)
