"""A defect or an outage in the middle of something: the job goes on all the same."""

from collections.abc import Callable
from typing import Any

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.scheduling.scheduler import Scheduler
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import NodeLost
from unit.coordinator.simulation.world import World, running_world


def failing_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises before it does its work for the first time."""
    failed: list[bool] = []

    def fail_first(*arguments: Any) -> Any:
        if not failed:
            failed.append(True)
            raise RuntimeError("a defect")
        return function(*arguments)

    return fail_first


async def test_a_job_whose_directives_were_not_sent_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are stored: the job begins again from there, as after a restart."""
    world = await running_world(4)
    await world.train(2)
    monkeypatch.setattr(JobActor, "_act", failing_once(JobActor._act))
    await world.kill_node("n1")
    await world.advance(2)
    await world.train(3)
    assert (await world.job()).state is JobState.RUNNING
    assert world.recoveries[-1].nodes_lost == ("n1",)


async def test_a_round_of_the_scheduler_that_fails_is_held_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else may happen that would have it look at the jobs."""
    world = World()
    await world.start(4)
    monkeypatch.setattr(Scheduler, "round", failing_once(Scheduler.round))
    await world.submit()
    await world.advance(2)
    assert (await world.job()).state is JobState.RUNNING


async def lose_n1(world: World, refusal: Exception, num_times: int) -> None:
    world.database.refusals = [refusal] * num_times
    lost = NodeLost(node_id="n1", fault_time=world.clock.now(), reason="no heartbeat", gone=True)
    await world.coordinator._state.actors[world.job_id].post(lost)
    await world.advance(2)


async def test_a_job_whose_data_cannot_be_stored_fails_with_the_reason() -> None:
    """It would try for ever; other jobs are not concerned."""
    world = await running_world(4)
    refusal = PlanariaError(ErrorReason.INVALID_ARGUMENT, "the database refuses NUL", {})
    await lose_n1(world, refusal, 3)
    job = await world.job()
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.message == "the database refuses NUL"
    assert not world.engines()


@pytest.mark.parametrize(
    ("refusal", "num_times"),
    [
        (ValueError("a defect"), 5),
        (PlanariaError(ErrorReason.UNAVAILABLE, "the disk is full", {}), 5),
        (PlanariaError(ErrorReason.INVALID_ARGUMENT, "once", {}), 1),
    ],
)
async def test_whatever_else_ails_the_database_is_waited_for(
    refusal: Exception, num_times: int
) -> None:
    world = await running_world(4)
    await lose_n1(world, refusal, num_times)
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert world.recoveries[0].nodes_lost == ("n1",)
