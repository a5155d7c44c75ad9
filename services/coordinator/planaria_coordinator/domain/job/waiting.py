"""Why a job waits: one event for each reason, shown for as long as it waits."""

from dataclasses import replace

from planaria_common.words import counted, counted_of
from planaria_coordinator.domain.job.ending import park
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun, Setback
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.recovery.transition import Cause

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


def set_back(turn: Turn, reason: str) -> None:
    """Have the job rest for a while before it plans again; the caller brings its engines to park.

    The pause doubles with each time, until a step is committed.
    """
    num_tries = 1 if turn.run.setback is None else turn.run.setback.num_tries + 1
    pause_seconds = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(num_tries - 1, 10))
    setback = Setback(
        reason=reason, num_tries=num_tries, retry_seconds=turn.now.seconds + pause_seconds
    )
    turn.change(setback=setback)


def rest(turn: Turn) -> None:
    """Park until the pause is over: the scheduler then lets the job go on."""
    setback = turn.run.setback
    if setback is None:
        raise AssertionError("nothing has set the job back")
    park(turn, JobState.WAITING if turn.run.has_trained else JobState.PENDING, setback.reason)
    if turn.run.interrupted is not None and turn.run.interrupted.cause is Cause.FINISHED:
        turn.change(interrupted=None)  # there is no recovery to tell of
    announce_waiting(turn, f"{setback.reason}; it tries again by itself")


def end_rest(turn: Turn) -> None:
    """Let the job try again."""
    if turn.run.setback is not None and turn.run.rests:
        turn.change(setback=replace(turn.run.setback, retry_seconds=None))
        turn.because("it is tried again")


def rest_overdue(turn: Turn) -> None:
    """End a pause that has lasted long enough."""
    retry_seconds = turn.run.setback.retry_seconds if turn.run.setback is not None else None
    if retry_seconds is not None and retry_seconds <= turn.now.seconds:
        end_rest(turn)


def still_waits(turn: Turn, reason: str) -> None:
    """The scheduler has nothing for the job; meanwhile it may have ended, or paused."""
    if turn.run.waits and turn.run.transition is None:
        announce_waiting(turn, reason)


def announce_waiting(turn: Turn, reason: str) -> None:
    """Say why the job waits, unless nothing else was the reason since it last ran.

    It may have tried to start meanwhile: nodes that come and go are no news.
    """
    if turn.run.waiting_reason == reason:
        return
    message = f"the job waits: {reason}"
    turn.change(waiting_reason=reason)
    turn.emit(f"job_{turn.run.state.lower()}", message, step=turn.run.committed_steps)
    turn.because(message)


def waiting_reason(run: JobRun) -> str:
    """Return why a job waits at this moment; empty when it does not."""
    if not run.waits:
        return ""
    if run.transition is not None:
        return f"engines start on {', '.join(run.transition.awaited_nodes)}"
    return run.waiting_reason


def too_few_nodes(
    num_nodes: int, num_needed: int, *, nodes_per_replica: int, num_replicas: int = 1
) -> str:
    """Say how many nodes a job could use, how many it takes, and for what.

    When its replicas take fewer, it is `resources.min_nodes` that asks for more.
    """
    if num_nodes == 0:
        return "no node is free"
    why = f"{counted(num_replicas, 'replica')} of {counted(nodes_per_replica, 'node')}"
    if num_needed > num_replicas * nodes_per_replica:
        why = "resources.min_nodes"
    return f"{counted_of(num_nodes, num_needed, 'node')} free ({why})"
