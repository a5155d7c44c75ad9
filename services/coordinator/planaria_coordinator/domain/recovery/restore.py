"""The state of a job is lost: begin again at its newest checkpoint, or fail."""

import json
from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.job.actions import ForgetSteps
from planaria_coordinator.domain.job.ending import fail
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.resume_advice import resume_advice
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn


def restore_or_fail(turn: Turn, lost: tuple[int, ...], step: int) -> None:
    """Go on from the newest checkpoint; without one the job has failed.

    Args:
        turn: the decision.
        lost: layers without a replica.
        step: the version that they are lost in.
    """
    layers = ",".join(str(layer) for layer in lost)
    step = turn.run.requirements.trained_steps(step)
    how = f", the last as {turn.run.last_fault}" if turn.run.last_fault else ""
    if turn.run.newest_checkpoint:
        _restore(turn, f"no replica of layers {layers} can be had at step {step}{how}")
        return
    fail(
        turn,
        ErrorReason.STATE_LOST,
        f"every replica of layers {layers} is gone at step {step}{how}: {resume_advice(turn.run)}",
        {"layers": layers},
    )


def _restore(turn: Turn, reason: str) -> None:
    """Have the job start at its newest checkpoint, on new engines; what came after it is void."""
    run = turn.run
    path, step = run.newest_checkpoint, run.newest_checkpoint_steps
    spec = json.dumps({**json.loads(run.requirements.job_spec), "init_from": path})
    turn.drop_superseded()
    turn.stop_engines(tuple(run.engines), "the job goes on from a checkpoint")
    turn.silent_engines.clear()
    turn.losses.clear()
    turn.retry_reason = ""
    turn.change(
        state=JobState.PAUSED if run.pause_wanted else JobState.PENDING,
        requirements=replace(run.requirements, job_spec=spec, init_from=path),
        restored_generation=run.generation + 1,
        placement=None,
        candidate=None,
        transition=None,
        interrupted=None,
        left_idle=(),
        absent={},
        awaited_state=None,
        committed_steps=step,
        evaluation=run.evaluation if run.evaluation and run.evaluation.step <= step else None,
        data_digest="",
        initial_state=None,
        checkpoints={},
        late_writers=(),
        checkpoint_floor=step,
        disturbance=None,
        setback=None,
        waiting_reason="",
    )
    turn.account(Activity.PAUSED if run.pause_wanted else Activity.WAITING)
    turn.actions.append(ForgetSteps(first_step=step))
    turn.emit(
        "job_restored",
        f"{reason}: the job goes on from {path}, at step {step}",
        step=step,
        checkpoint=path,
    )
    turn.because(f"{reason}: it goes on from {path}")
