"""Nodes that a job does without for a while, and when they join again."""

from unit.coordinator.recovery.test_broken_links import STALLED, left_out, others, say
from unit.coordinator.simulation.world import World, running_world


async def test_who_was_left_out_for_another_joins_again_when_the_other_is() -> None:
    """Of a single link nobody knows whose fault it is; with the second one it shows."""
    world = await running_world(6)
    say(world, "n1", ["n3"], STALLED)
    await world.advance(2)
    assert left_out(world) == ["n1"]
    say(world, "n2", ["n3"], STALLED)
    await world.advance(2)
    assert left_out(world) == ["n1", "n3"]
    await world.advance(2)
    await world.train(3)
    assert world.run.left_out.keys() == {"n3"}
    assert len(world.members()) == 5


async def see_end(world: World, node_id: str) -> None:
    """All others say that an engine has ended."""
    for other in others(world, node_id):
        say(world, other, [node_id])
    await world.settle()


async def test_whom_others_saw_end_is_never_refused_for_it() -> None:
    """Its agent has not said so: it may have been the network. Guard: it is no strike."""
    world = await running_world(6)
    for pause in (0, 30, 60, 120):
        await see_end(world, "n3")
        assert world.run.left_out.keys() == ({"n3"} if pause else set())
        await world.advance(pause + 1)
        await world.train(3)
        assert len(world.members()) == 6
    assert not world.run.refused
    assert not world.run.failure_times


async def test_only_the_engine_that_others_saw_end_is_lost_at_first() -> None:
    """Another one of its node goes on. The second time all of the node is left out."""
    world = await running_world(4, 2, resources={"min_nodes_per_pipeline": 1})
    before = set(world.engines())
    dead, other = world.agents["n3"].engines
    world.tell_peer_lost(dead)
    await world.settle()
    assert before - world.run.engines.keys() == {dead}
    await world.advance(1)
    await world.train(3)
    assert len(world.members()) == 8
    (again,) = world.agents["n3"].engines.keys() - {other}
    world.tell_peer_lost(again)
    await world.settle()
    assert before - world.run.engines.keys() == {dead, other}
    assert left_out(world) == ["n3"]


async def test_whose_agent_says_that_it_ended_joins_again_at_once() -> None:
    """Others saw it first. Guard: `_note_own_end`; and a process that ends again and again."""
    world = await running_world(6)
    world.hold("stop", "n3")
    for times in (1, 2, 3):
        dead = world.engine_on("n3").id
        await see_end(world, "n3")
        assert dead not in world.run.engines
        world.agents["n3"].lose_engine(dead)
        await world.settle()
        assert not world.run.left_out
        assert len(world.run.failure_times["n3"]) == times
        assert ("n3" in world.run.refused) is (times == 3)
        await world.advance(1)
        await world.train(3)
        assert len(world.members()) == (5 if times == 3 else 6)
    assert left_out(world) == []


async def test_a_lost_node_may_join_as_soon_as_it_is_back() -> None:
    """It is known what ailed it: no broken link. Guard: `fault_found`."""
    world = await running_world(6)
    await see_end(world, "n3")
    await world.advance(1)
    await world.train(3)
    world.hold("stop", "n3")
    await see_end(world, "n3")
    assert world.run.left_out.keys() == {"n3"}
    await world.kill_node("n3")
    await world.advance(1)
    assert not world.run.left_out
    await world.add_node("n3")
    await world.train(3)
    assert len(world.members()) == 6


async def test_a_node_that_was_left_out_joins_again_later() -> None:
    world = await running_world(6)
    say(world, "n3", others(world, "n3"), STALLED)
    await world.advance(2)
    await world.train(2)
    (condition,) = (await world.job()).conditions
    assert condition.type == "NODES_LEFT_OUT"
    assert condition.node_ids == ("n3",)
    await world.advance(31)
    assert (await world.job()).conditions == ()
    await world.train(3)
    assert "n3" in world.run.nodes
    assert len(world.members()) == 6


async def test_each_time_it_is_left_out_for_longer() -> None:
    world = await running_world(6)
    pauses = []
    for _ in range(3):
        say(world, "n3", others(world, "n3"), STALLED)
        await world.advance(2)
        pauses.append(world.run.cordoned["n3"].pause_seconds)
        await world.advance(pauses[-1] + 1)
        await world.train(3)
        assert len(world.members()) == 6
    assert pauses == [30, 60, 120]
