"""The life of a job without failures: it starts, trains, stands still, goes on and finishes."""

from planaria_coordinator.domain.job import JobState
from unit.coordinator.simulation import World


async def test_a_job_starts_trains_and_succeeds() -> None:
    """From submission to the digest, every second has a name [9]."""
    world = World()
    await world.start(4)
    await world.submit(training={"steps": 3})
    assert (await world.job()).state is JobState.RUNNING
    await world.train(3)
    await world.settle()

    job = await world.job()
    assert job.state is JobState.SUCCEEDED
    assert job.step == 3
    assert len(job.final_digest) == 64
    assert job.end_time is not None
    wall_seconds = (job.end_time - job.create_time).total_seconds()
    assert abs(sum(job.time_seconds.values()) - wall_seconds) < 1e-6
    assert not world.engines()
    assert world.event_types()[-1] == "job_succeeded"
    await world.stop()
