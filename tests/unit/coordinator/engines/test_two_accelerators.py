"""Nodes with two accelerators: an engine on each, and one of them may be lost alone."""

from planaria_coordinator.domain.engines.directive import StagePlan
from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.fake_database import DIRECTIVE
from unit.coordinator.simulation.world import World, running_world


async def world_of_pairs(num_nodes: int, nodes_per_pipeline: int) -> World:
    return await running_world(
        num_nodes,
        2,
        resources={"min_nodes_per_pipeline": nodes_per_pipeline},
    )


def nodes_with_a_place(world: World) -> set[str]:
    return {node_of(engine.id) for engine in world.members()}


async def test_a_node_is_assigned_only_when_all_its_engines_are_back() -> None:
    world = await world_of_pairs(3, nodes_per_pipeline=1)
    crashed, other = sorted(world.agents["n1"].engines)
    world.agents["n1"].held_kinds.add("prepare")
    world.begin_step()
    world.agents["n1"].lose_engine(crashed)
    await world.settle()
    await world.train(2)
    assert nodes_with_a_place(world) == {"n0", "n2"}
    assert set(world.agents["n1"].engines) == {other}, "it did not die, and goes on to serve"

    world.agents["n1"].release()
    await world.settle()
    await world.train(2)
    assert len(world.members()) == 6
    assert nodes_with_a_place(world) == {"n0", "n1", "n2"}
    (new,) = world.agents["n1"].engines.keys() - {other}
    assert new.split("/")[:3] == crashed.split("/")[:3], "on the same accelerator"


async def test_a_node_takes_both_of_its_engines_along() -> None:
    """[5] One loss, one story."""
    world = await world_of_pairs(4, nodes_per_pipeline=2)
    world.begin_step()
    await world.kill_node("n1")
    await world.train(3)
    (recovery,) = world.recoveries
    assert recovery.nodes_lost == ("n1",)
    assert (await world.job()).state is JobState.RUNNING
    assert len(world.members()) == 6


async def test_the_rest_of_a_half_lost_node_may_go_as_well() -> None:
    """[5] First an engine, then the other one of its node, then a node: f + 1 replicas are left."""
    world = await world_of_pairs(4, nodes_per_pipeline=1)
    world.hold("prepare")
    for engine_id in sorted(world.agents["n1"].engines):
        world.begin_step()
        world.agents["n1"].lose_engine(engine_id)
        await world.settle()
    await world.train(2)
    await world.kill_node("n2")
    await world.train(2)
    assert nodes_with_a_place(world) == {"n0", "n3"}
    world.agents["n1"].release()
    await world.settle()
    await world.train(2)
    assert nodes_with_a_place(world) == {"n0", "n1", "n3"}


async def test_layers_that_move_within_a_machine_come_from_there() -> None:
    """No network is faster, though another pipeline holds them, too."""
    world = await world_of_pairs(5, nodes_per_pipeline=2)
    staying, moving = sorted(world.agents["n4"].engines)
    assert world.engines()[staying].owned == {4}
    assert world.engines()[moving].owned == {5}
    world.begin_step()
    await world.kill_node("n0")
    sent = [DIRECTIVE.validate_json(each) for each in world.database.tables.directives.values()]
    (layers,) = [
        {source.layer: source.addresses for source in directive.command.layers}
        for directive in sent
        if isinstance(directive.command, StagePlan)
        and directive.command.layers
        and directive.engine_id == moving
    ]
    assert layers[4][0] == f"data:{staying}"
    assert len(layers[4]) == 2
    await world.train(2)
    assert world.engines()[moving].owned == {4, 5}
