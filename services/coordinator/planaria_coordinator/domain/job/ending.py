"""How a job is parked, or ends."""

from collections.abc import Mapping

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.job.job import JobError, JobState
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn

_WORDS = {
    JobState.SUCCEEDED: ("job_succeeded", "the job has succeeded"),
    JobState.CANCELLED: ("job_cancelled", "the job was cancelled"),
}


def fail(
    turn: Turn, reason: ErrorReason, message: str, metadata: Mapping[str, str] | None = None
) -> None:
    """End the job because it cannot go on."""
    error = JobError(reason=reason, message=message, metadata=dict(metadata or {}))
    turn.change(error=error)
    _end(turn, JobState.FAILED, message)
    turn.emit("job_failed", message, reason=str(reason), **dict(metadata or {}))
    turn.because(message)


def end(turn: Turn, state: JobState) -> None:
    """End the job as wished."""
    event_type, words = _WORDS[state]
    num_steps = turn.run.requirements.trained_steps(turn.run.committed_steps)
    steps = f" after {num_steps} of {turn.run.requirements.steps} steps"
    _end(turn, state, words)
    turn.emit(event_type, words + steps, step=num_steps, digest=turn.run.final_digest)
    turn.because(words)


def _end(turn: Turn, state: JobState, reason: str) -> None:
    turn.drop_superseded()
    turn.silent_engines.clear()
    turn.retry_reason = ""
    turn.change(
        state=state,
        transition=None,
        interrupted=None,
        disturbance=None,
        absent={},
        awaited_state=None,
        time_account=turn.run.time_account.close(turn.now.time),
        end_time=turn.now.time,
    )
    turn.stop_engines(tuple(turn.run.engines), reason)
    turn.release_empty_nodes()


def pause_waiting(turn: Turn) -> None:
    """A job that waits is paused from now on."""
    turn.set_state(JobState.PAUSED)
    turn.account(Activity.PAUSED)
    turn.emit("job_paused", "the job is paused")


def park(turn: Turn, state: JobState, message: str) -> None:
    """Leave the transition without a plan: engines stay parked and keep their state.

    `waiting` reports what a job waits for.
    """
    history = turn.transition.history
    waits = state in (JobState.WAITING, JobState.PENDING)
    turn.drop_superseded()
    turn.change(transition=None, state=state, interrupted=history if waits else None)
    turn.account(Activity.WAITING if waits else Activity.PAUSED)
    if not waits:
        turn.emit("job_paused", message, step=turn.run.committed_steps)
    turn.because(message)
