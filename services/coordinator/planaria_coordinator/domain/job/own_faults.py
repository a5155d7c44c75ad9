"""The coordinator's own faults: it was stopped for a while, was started again, or has a defect."""

from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.checkpoint import checkpoint_protocol
from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.job.cordons import restart_cordons
from planaria_coordinator.domain.job.ending import fail
from planaria_coordinator.domain.job.job_run import JobRun, Limits, Moment
from planaria_coordinator.domain.job.turn import Decision, Turn
from planaria_coordinator.domain.job.waiting import end_rest, rest, set_back
from planaria_coordinator.domain.recovery.broken_communication import (
    fence_everybody,
    restart_disturbance,
)
from planaria_coordinator.domain.recovery.opening import (
    carried_history,
    open_again,
    open_online_change,
)
from planaria_coordinator.domain.recovery.transition import Phase
from planaria_coordinator.domain.recovery.unreachable_holders import restart_holders_deadline


def shift_deadlines(turn: Turn, seconds: float) -> None:
    """No deadline counts the time in which the coordinator was stopped."""
    pending = {
        key: replace(p, deadline_seconds=p.deadline_seconds + seconds)
        for key, p in turn.run.pending.items()
    }
    turn.note_run(pending=pending)
    checkpoint_protocol.shift_deadlines(turn, seconds)


def restart_deadlines(turn: Turn, node_id: str | None = None) -> None:
    """Count from now on: a deadline begins when the directive can be delivered."""
    pending = {
        key: replace(p, deadline_seconds=turn.now.seconds + p.allowed_seconds)
        if node_id in (None, p.node_id)
        else p
        for key, p in turn.run.pending.items()
    }
    turn.note_run(pending=pending)


def restarted(turn: Turn) -> None:
    """Start the transition under way again; engines that only start are awaited."""
    restart_deadlines(turn)
    restart_disturbance(turn)
    restart_cordons(turn)
    checkpoint_protocol.restart_deadlines(turn)
    restart_holders_deadline(turn)
    end_rest(turn)
    transition = turn.run.transition
    if transition is None or transition.phase is Phase.PREPARING:
        return
    reason = "the coordinator has started again"
    if transition.is_online:
        open_online_change(turn, carried_history(turn), reason, asks_anew=True)
        return
    trained = transition.mode is QuiesceMode.FENCE or transition.phase is Phase.SWITCHING
    finishes = trained or transition.history.resume_time is not None
    mode = QuiesceMode.FENCE if finishes else QuiesceMode.IMMEDIATE
    open_again(turn, reason, counts=False, mode=mode)


def start_over(now: Moment, run: JobRun, detail: str, limits: Limits) -> Decision:
    """Go on from a fence when a defect has kept a signal from being decided on.

    An engine that was lost does not answer the fence. Each time the job rests longer before it
    plans again; when the fence meets the defect too, it rests at once.
    """
    turn = Turn(now=now, run=run, limits=limits)
    reason = f"a defect in the coordinator ({detail}); its log has the details"
    if run.transition is not None and run.transition.phase is not Phase.PREPARING:
        if run.rests:
            rest(turn)
        else:
            set_back(turn, reason)
            open_again(turn, reason, counts=False)
    elif run.trains and not run.rests:
        set_back(turn, reason)
        fence_everybody(turn, now.time, reason)
    return turn.decision


def give_up(now: Moment, run: JobRun, detail: str, limits: Limits) -> Decision:
    """Fail a job whose data cannot be stored, such as a text that the database does not take."""
    turn = Turn(now=now, run=run, limits=limits)
    if not run.state.is_terminal:
        fail(turn, ErrorReason.INTERNAL, detail, {"part": "database"})
    return turn.decision
