"""What nobody will read again does not gather in the database."""

from datetime import timedelta

import pytest

from planaria_coordinator.application import pruning
from planaria_coordinator.application.pruning import NUM_KEPT_GENERATIONS
from unit.coordinator.simulation.job_documents import job_document
from unit.coordinator.simulation.world import World, running_world


def stored_generations(world: World) -> set[int]:
    keys = world.database.tables.directives
    return {int(key.split("/")[1]) for key in keys if key.startswith(world.job_id)}


async def lose_and_gain(world: World, number: int) -> None:
    await world.add_node(f"more{number}")
    await world.train()
    await world.kill_node(f"more{number}")
    await world.train()
    await world.coordinator.flush()


@pytest.fixture(params=[1, 250])
def _rows_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_MAX_ROWS", request.param)


@pytest.mark.usefixtures("_rows_at_once")
async def test_directives_of_the_last_generations_are_kept() -> None:
    """While the job trains, and when it has ended."""
    world = await running_world(2)
    for number in range(NUM_KEPT_GENERATIONS):
        await lose_and_gain(world, number)
    assert world.run.generation > 2 * NUM_KEPT_GENERATIONS
    oldest = world.run.generation - NUM_KEPT_GENERATIONS + 1
    assert min(stored_generations(world)) == oldest
    await world.coordinator.jobs.cancel(world.job_id)
    await world.settle()
    assert min(stored_generations(world)) == oldest


async def test_nothing_is_pruned_while_a_recovery_is_under_way() -> None:
    world = await running_world(3)
    for number in range(NUM_KEPT_GENERATIONS):
        await lose_and_gain(world, number)
    world.planner.is_open.clear()
    before = stored_generations(world)
    await world.kill_node("n2")
    assert before < stored_generations(world)
    world.planner.is_open.set()
    await world.settle()
    await world.train()
    assert not before <= stored_generations(world)


async def test_a_result_that_was_lost_with_the_coordinator_is_not_awaited_for_ever() -> None:
    """The job had stored what follows from it; the flush that stores the result never came."""
    world = await running_world(2)
    assert await pending(world)
    await world.crash_coordinator()
    assert not await pending(world)
    await world.reconnect()
    await world.train()


async def pending(world: World) -> list[str]:
    async with world.database.unit_of_work() as work:
        return [directive.id for directive in await work.directives.pending()]


async def test_a_request_id_is_remembered_for_two_days() -> None:
    world = World()
    await world.start(2)
    jobs = world.coordinator.jobs
    first = await jobs.create(job_document(), request_id="r1")
    world.clock.advance(timedelta(hours=47).total_seconds())
    await jobs.create(job_document(), request_id="r2")
    again = await jobs.create(job_document(), request_id="r1")
    assert again.job.id == first.job.id
    world.clock.advance(timedelta(hours=2).total_seconds())
    await jobs.create(job_document(), request_id="r3")
    assert set(world.database.tables.requests) == {"r2", "r3"}
