"""What another job can go on from: the newest complete checkpoint of this one."""

from pathlib import PurePosixPath

from planaria_coordinator.domain.checkpoint.checkpoint import first_due, version_of
from planaria_coordinator.domain.job.job_run import JobRun


def resume_advice(run: JobRun) -> str:
    """Say why a job cannot go on whose state is lost."""
    if run.requirements.checkpoint_path:
        return "no checkpoint was complete yet: the job must begin again"
    return "checkpoint.path was not set: the job must begin again"


def resume_problem(run: JobRun) -> str:
    """Say why no job can continue from a job's checkpoints; empty when one can."""
    requirements = run.requirements
    if not requirements.checkpoint_path:
        return f"{run.job_id} wrote no checkpoints: checkpoint.path was not set"
    if run.newest_checkpoint or _began_in(requirements.checkpoint_path, run):
        return ""
    num_steps = requirements.trained_steps(run.committed_steps)
    first = first_due(
        run.initial_steps,
        every_steps=requirements.checkpoint_every_steps,
        num_steps=requirements.steps,
    )
    if run.checkpoints:
        why = f"that of step {max(run.checkpoints)} is not complete"
    elif num_steps < first:
        why = f"its first is due at step {first}, and it is at step {num_steps}"
    else:
        events = f"`planaria jobs events {run.job_id}`"
        why = f"one was due at step {first}; {events} says what became of it"
    return f"{run.job_id} has completed no checkpoint: {why}"


def _began_in(folder: str, run: JobRun) -> bool:
    """Whether a job began at a checkpoint in a folder: then that one is there at least."""
    initial_state, init_from = run.initial_state, PurePosixPath(run.requirements.init_from)
    if initial_state is not None:  # at step 0: from Hugging Face weights
        return initial_state.step > 0 and PurePosixPath(initial_state.path).parent == PurePosixPath(
            folder
        )
    if init_from.parent == PurePosixPath(folder):
        return version_of(init_from.name) is not None
    return bool(run.requirements.init_from) and init_from == PurePosixPath(folder)
