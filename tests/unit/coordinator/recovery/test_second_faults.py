"""A loss in any phase of any kind of change ends in training, with nothing lost [2, 4, 5, 7]."""

from collections.abc import Awaitable, Callable

import pytest

from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.world import World, running_world

Disturb = Callable[[World], Awaitable[None]]


async def lose_a_node(world: World) -> None:
    """n1 dies in the middle of a step that one engine has committed already."""
    members = world.begin_step()
    world.pass_exchange(members[:1])
    await world.kill_node("n1")


async def lose_an_engine(world: World) -> None:
    """The engine of n1 dies; its agent says so, and it is created again."""
    world.begin_step()
    agent = world.agents["n1"]
    agent.lose_engine(next(iter(agent.engines)))
    await world.settle()


async def join(world: World) -> None:
    await world.add_node("n9")
    await world.train()


async def drain(world: World) -> None:
    await world.coordinator.cluster.drain("n1")
    await world.settle()
    await world.train()


async def pause_and_resume(world: World) -> None:
    await world.coordinator.jobs.pause(world.job_id)
    await world.settle()
    await world.train()
    await world.coordinator.jobs.resume(world.job_id)
    await world.settle()


CAUSES: dict[str, Disturb] = {
    "node_lost": lose_a_node,
    "engine_lost": lose_an_engine,
    "node_joined": join,
    "node_drained": drain,
    "resumed": pause_and_resume,
}


KINDS = ["prepare", "quiesce", "roll_forward", "copy", "activate stage_plan"]


async def lose_another_node(world: World) -> None:
    await world.kill_node("n2")


async def crash_the_coordinator(world: World) -> None:
    await world.crash_coordinator()
    await world.reconnect()


async def lose_a_node_and_crash(world: World) -> None:
    dead = world.agents.pop("n2")
    dead.disconnect()
    await world.crash_coordinator()
    await world.reconnect()
    for engine_id in dead.engines:
        world.tell_peer_lost(engine_id)
    await world.advance(4)


async def fall_silent(world: World) -> None:
    world.agents["n2"].is_silent = True
    await world.advance(4)


async def lose_every_session(world: World) -> None:
    for agent in world.agents.values():
        agent.disconnect()
    await world.settle()
    await world.reconnect()


SECOND: dict[str, Disturb] = {
    "another_node_dies": lose_another_node,
    "the_coordinator_crashes": crash_the_coordinator,
    "both": lose_a_node_and_crash,
    "a_node_falls_silent": fall_silent,
    "all_sessions_end": lose_every_session,
}


async def recover(world: World) -> None:
    """Let everything that was held back go on, and train."""
    await world.release()
    for _ in range(6):
        await world.train()
    await world.advance(2)
    await world.train(2)


@pytest.mark.parametrize(
    ("nodes_per_pipeline", "num_accelerators"),
    [
        (1, 1),
        (2, 1),
        pytest.param(1, 2, marks=pytest.mark.slow),
        pytest.param(2, 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_second_fault_in_any_phase_only_starts_the_next_change(
    cause: str, kind: str, second: str, nodes_per_pipeline: int, num_accelerators: int
) -> None:
    """With three replicas two faults lose nothing, wherever the second one falls."""
    world = await running_world(
        4 if nodes_per_pipeline == 1 else 6,
        num_accelerators,
        resilience={"fault_tolerance": 2},
        resources={"min_nodes_per_pipeline": nodes_per_pipeline},
    )
    await world.train(2)
    for each in kind.split():
        world.hold(each)
    await CAUSES[cause](world)
    before = (await world.job()).step
    await SECOND[second](world)
    await recover(world)

    job = await world.job()
    assert job.state is JobState.RUNNING
    assert job.error is None
    assert job.step >= before
    assert world.members()
    assert not world.violations
    generations = [g for _, g in world.database.tables.generations]
    assert generations == sorted(set(generations))
