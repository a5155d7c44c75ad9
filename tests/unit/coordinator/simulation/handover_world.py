"""A join that is held while places are made ready, or while all change over."""

from planaria_coordinator.domain.recovery.transition import Phase
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.world import World


async def staging_join(world: World) -> SimAgent:
    """n9 is to join, and its place cannot be made ready yet."""
    agent = await world.add_node("n9", "stage_plan")
    assert world.phase is Phase.STAGING
    return agent


async def switching_join(world: World) -> SimAgent:
    """n9 is to join, and everybody has been asked to change over."""
    agent = await world.add_node("n9")
    assert world.phase is Phase.SWITCHING
    return agent
