"""Why a job waits: one event for each reason, shown for as long as it waits."""

from planaria_common.words import counted, counted_of
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.turn import Turn


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
