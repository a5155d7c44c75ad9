"""A job that evaluates: one commit more than it has steps, and the result in what users read."""

from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.checkpoint_world import announce, checkpoint_events, write, writers
from unit.coordinator.simulation.world import World, running_world

EVALUATION = {"every_steps": 2, "fraction": 0.1}


async def evaluating_world(steps: int = 3) -> World:
    """At step 1, with a checkpoint at the end."""
    checkpoint = {"path": "runs", "every_steps": 100}
    resources = {"min_nodes_per_pipeline": 2}
    return await running_world(
        training={"steps": steps},
        evaluation=EVALUATION,
        checkpoint=checkpoint,
        resources=resources,
    )


async def test_steps_tell_what_they_evaluated_and_the_last_one_is_no_step_of_training() -> None:
    world = await evaluating_world()
    job = await world.job()
    assert (job.step, job.evaluation_step, job.evaluation_loss) == (1, 0, 2.0)
    await world.train(2)
    shares = announce(world, 3)
    await write(world, 3, shares)
    job = await world.job()
    assert (job.state, job.step, job.evaluation_step) == (JobState.RUNNING, 3, 2)
    await world.train()
    job = await world.job()
    assert (job.state, job.step, job.steps) == (JobState.SUCCEEDED, 3, 3)
    assert (job.loss, job.evaluation_step, job.evaluation_loss) == (1 / 3, 3, 0.5)
    page = await world.coordinator.jobs.metrics(world.job_id, PageRequest())
    assert [(each.step, each.loss, each.evaluation_loss) for each in page.items] == [
        (0, 1.0, 2.0),
        (1, 0.5, None),
        (2, 1 / 3, 2 / 3),
        (3, None, 0.5),
    ]
    assert checkpoint_events(world) == [("checkpoint_written", 3)]
    assert world.events[-1].details["step"] == 3


async def test_stored_steps_outlive_the_coordinator() -> None:
    """Their reports are acknowledged, and nobody tells them again. Guard: `restored_run`."""
    world = await evaluating_world()
    await world.coordinator.flush()
    await world.settle()
    before = world.run
    await world.crash_coordinator()
    await world.reconnect()
    await world.coordinator.flush()
    job = await world.job()
    assert (job.evaluation_step, job.evaluation_loss) == (0, 2.0)
    assert before.last_commit_time is not None
    assert world.run.last_commit_time == before.last_commit_time
    assert world.run.last_step_seconds == before.last_step_seconds > 0
    assert world.run.committed_steps == before.committed_steps > 0


async def test_the_last_checkpoint_is_written_by_engines_that_have_evaluated_since() -> None:
    """A writer dies in the closing step: at the version behind it, others have the same tensors."""
    world = await evaluating_world()
    await world.train(2)
    announce(world, 3)
    await world.settle()
    await world.train()
    await world.kill_node("n1")
    await write(world, 3, writers(world.run.checkpoints[3]))
    assert (await world.job()).state is JobState.SUCCEEDED
    assert checkpoint_events(world) == [("checkpoint_written", 3)]


async def test_an_evaluation_outlives_its_reporter() -> None:
    """What a survivor's fence report says of its last commit is enough."""
    world = await evaluating_world()
    await world.train(2)
    await write(world, 3, announce(world, 3))
    await world.commit_unreported()
    job = await world.job()
    assert (job.state, job.evaluation_step, job.evaluation_loss) == (JobState.SUCCEEDED, 3, 0.5)
