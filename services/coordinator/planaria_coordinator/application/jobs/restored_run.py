"""The run of a job as a new coordinator restores it."""

from collections.abc import Sequence
from dataclasses import replace

from planaria_coordinator.domain.job.job import Evaluation, Job, StepMetrics
from planaria_coordinator.domain.job.job_run import JobRun


def restored_run(job: Job, run: JobRun, newest: Sequence[StepMetrics]) -> JobRun:
    """Return the stored run, completed with what engines reported since it was stored.

    A run is stored with decisions alone, what engines report of steps in batches of its own.

    Args:
        job: its row, which knows the newest step and evaluation.
        run: as it was at the last decision.
        newest: its newest committed steps, the oldest of them first.
    """
    if newest and newest[-1].step >= run.committed_steps:
        last = newest[-1]
        run = replace(run, last_commit_time=last.commit_time, last_step_seconds=last.step_seconds)
    known = -1 if run.evaluation is None else run.evaluation.step
    step, loss = job.evaluation_step, job.evaluation_loss
    if step is not None and loss is not None and step > known:
        run = replace(run, evaluation=Evaluation(step=step, loss=loss))
    return replace(run, committed_steps=max(run.committed_steps, job.step))
