"""A join that is held while places are made ready, or while all change over."""

from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.world import World


def phase_of(world: World) -> Phase | None:
    return world.run.transition.phase if world.run.transition is not None else None


def hold(world: World, kind: str, *node_ids: str) -> None:
    for node_id in node_ids or tuple(world.agents):
        world.agents[node_id].held_kinds.add(kind)


async def release(world: World) -> None:
    for agent in world.agents.values():
        agent.release()
    await world.settle()


async def staging_join(world: World) -> SimAgent:
    """n9 is to join, and its place cannot be made ready yet."""
    agent = await world.add_node("n9", "stage_plan")
    assert phase_of(world) is Phase.STAGING
    return agent


async def switching_join(world: World) -> SimAgent:
    """n9 is to join, and everybody has been asked to change over."""
    agent = await world.add_node("n9")
    assert phase_of(world) is Phase.SWITCHING
    return agent
