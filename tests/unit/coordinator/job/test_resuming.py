"""Going on from an earlier job's checkpoints: refused at submission while there is none."""

from dataclasses import replace

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.engines.directive import InitialState
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.resume_advice import resume_problem
from unit.coordinator.simulation.checkpoint_world import (
    FULL,
    announce,
    checkpoint_events,
    checkpointed_world,
    tell,
    write,
)
from unit.coordinator.simulation.job_documents import job_document
from unit.coordinator.simulation.world import World, running_world


async def refusal(world: World, job_id: str, *, dry_run: bool = False) -> PlanariaError:
    num_jobs = len(world.database.tables.jobs)
    with pytest.raises(PlanariaError) as caught:
        await world.coordinator.jobs.create(job_document(), dry_run=dry_run, resume_job_id=job_id)
    assert len(world.database.tables.jobs) == num_jobs
    return caught.value


async def beginning(world: World, job_id: str) -> object:
    """Submit a job that goes on from another one; return where it begins."""
    submission = await world.coordinator.jobs.create(job_document(), resume_job_id=job_id)
    return submission.job.spec["init_from"]


async def test_a_job_without_checkpoints_is_refused_with_the_reason() -> None:
    world = await running_world(2)
    for dry_run in (False, True):
        error = await refusal(world, world.job_id, dry_run=dry_run)
        assert error.reason is ErrorReason.INVALID_ARGUMENT
        assert error.message == f"{world.job_id} wrote no checkpoints: checkpoint.path was not set"
        assert error.metadata == {"field": "resume_job_id", "job_id": world.job_id}


async def test_a_job_that_is_not_there_cannot_be_gone_on_from() -> None:
    world = await running_world(2)
    assert (await refusal(world, "job-0")).reason is ErrorReason.JOB_NOT_FOUND


async def test_until_a_checkpoint_is_complete_the_refusal_says_how_far_it_is() -> None:
    """Before the first is due, while it is written, and when it has failed."""
    world = await checkpointed_world()
    none = f"{world.job_id} has completed no checkpoint: "
    error = await refusal(world, world.job_id)
    assert error.message == f"{none}its first is due at step 2, and it is at step 1"
    await world.train()
    shares = announce(world, 2)
    await world.settle()
    error = await refusal(world, world.job_id)
    assert error.message == f"{none}that of step 2 is not complete"
    tell(world, next(iter(world.engines().values())), 2, FULL)
    await world.settle()
    error = await refusal(world, world.job_id)
    events = f"`planaria jobs events {world.job_id}`"
    assert error.message == f"{none}one was due at step 2; {events} says what became of it"
    await world.train(2)
    shares = announce(world, 4)
    await write(world, 4, shares)
    assert await beginning(world, world.job_id) == "runs"


@pytest.mark.parametrize("is_complete", [False, True])
async def test_a_job_that_has_ended_is_asked_for_its_checkpoints_too(is_complete: bool) -> None:
    """Only the database knows it then; also after the coordinator has started again."""
    world = await checkpointed_world()
    await world.train()
    if is_complete:
        await write(world, 2, announce(world, 2))
    await world.coordinator.jobs.cancel(world.job_id)
    await world.settle()
    assert world.job_id not in world.coordinator._state.actors
    await world.crash_coordinator()
    await world.reconnect()
    if is_complete:
        assert await beginning(world, world.job_id) == "runs"
    else:
        assert "has completed no checkpoint" in (await refusal(world, world.job_id)).message


async def cancelled_while_sealing(*, dies: bool) -> World:
    """The coordinator may die when that is stored, and the engines hear of it from the next one."""
    world = await checkpointed_world()
    await world.train()
    for agent in world.agents.values():
        agent.held_kinds.update(("seal_checkpoint", "stop"))
    await write(world, 2, announce(world, 2))
    await world.coordinator.jobs.cancel(world.job_id)
    await world.settle()
    assert checkpoint_events(world) == []
    if dies:
        await world.crash_coordinator()
        await world.reconnect()
    return world


@pytest.mark.parametrize("dies", [False, True])
async def test_a_checkpoint_that_is_sealed_while_its_job_is_cancelled_is_known(dies: bool) -> None:
    """It is complete on the disk: another job can go on from it. Guard: `_jobs_to_restore`."""
    world = await cancelled_while_sealing(dies=dies)
    for kind in ("seal_checkpoint", "stop"):
        for agent in world.agents.values():
            agent.release_kind(kind)
    await world.settle()
    assert world.job_id not in world.coordinator._state.actors
    assert checkpoint_events(world) == [("checkpoint_written", 2)]
    assert await beginning(world, world.job_id) == "runs"


@pytest.mark.parametrize("dies", [False, True])
async def test_a_checkpoint_that_was_not_sealed_before_its_engine_stopped_is_given_up(
    dies: bool,
) -> None:
    world = await cancelled_while_sealing(dies=dies)
    for agent in world.agents.values():
        agent.release_kind("stop")
    await world.settle()
    assert checkpoint_events(world) == [("checkpoint_incomplete", 2)]
    assert "has completed no checkpoint" in (await refusal(world, world.job_id)).message


async def test_a_job_in_the_folder_that_it_began_from_can_be_gone_on_from() -> None:
    """Its own first checkpoint is not due yet, but that of the job before it is there."""
    world = await checkpointed_world()
    await world.train()
    await write(world, 2, announce(world, 2))
    document = job_document(checkpoint={"path": "runs"})
    second = await world.coordinator.jobs.create(document, resume_job_id=world.job_id)
    assert second.job.state is JobState.PENDING
    assert await beginning(world, second.job.id) == "runs"


def found(path: str, step: int) -> InitialState:
    return InitialState(path=path, step=step, sha256="ab" * 32, num_tokens=step)


@pytest.mark.parametrize(
    ("init_from", "initial_state", "is_there"),
    [
        ("runs", None, True),
        ("./runs/", found("runs/step-00000050", 50), True),
        ("runs", found("runs", 0), False),
        ("runs/step-00000050", None, True),
        ("runs/step-00000050", found("runs/step-00000050", 50), True),
        ("runs/llama", None, False),
        ("runs/llama", found("runs/llama", 0), False),
        ("runs/other", found("runs/other/step-00000050", 50), False),
        ("elsewhere", found("elsewhere/step-00000050", 50), False),
        ("", None, False),
    ],
)
async def test_only_a_checkpoint_in_the_folder_itself_is_found_there(
    init_from: str, initial_state: InitialState | None, is_there: bool
) -> None:
    """Weights from Hugging Face in it or below it are none, nor is what another job has below."""
    world = await checkpointed_world()
    requirements = replace(world.run.requirements, init_from=init_from)
    run = replace(world.run, requirements=requirements, initial_state=initial_state)
    assert (resume_problem(run) == "") is is_there
