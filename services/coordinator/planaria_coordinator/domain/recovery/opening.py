"""Opening a transition: generation g + 1 is written first, then sent [4, 7]."""

from dataclasses import replace
from datetime import datetime

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.preparing import begin_preparing
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.start_of_training import choose_first_plan
from planaria_coordinator.domain.job.time_account import Activity, TimeAccount
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.ask_planner import begin_online_planning, horizon_seconds
from planaria_coordinator.domain.recovery.fencing import begin_quiescing
from planaria_coordinator.domain.recovery.transition import (
    Cause,
    Phase,
    Transition,
    TransitionHistory,
)
from planaria_coordinator.domain.recovery.unreachable_holders import admit_returned

_EVENTS = {
    Cause.START: "job_starting",
    Cause.NODE_LOST: "recovery_started",
    Cause.ENGINE_LOST: "recovery_started",
    Cause.NODE_JOINED: "join_started",
    Cause.NODE_DRAINED: "drain_started",
    Cause.PAUSED: "job_pausing",
    Cause.RESUMED: "job_resuming",
    Cause.FINISHED: "job_finishing",
}


def new_history(
    turn: Turn, cause: Cause, *, start_time: datetime | None = None
) -> TransitionHistory:
    """Begin the account of a change, or go on with that of a recovery that waits for nodes."""
    run = turn.run
    if run.unreported_recovery is not None:
        return replace(run.unreported_recovery, num_attempts=0)
    return TransitionHistory(
        cause=cause,
        start_time=start_time or turn.now.time,
        first_open_time=turn.now.time,
        sizes_before=run.placement.plan.sizes if run.placement else (),
    )


def open_transition(
    turn: Turn,
    history: TransitionHistory,
    reason: str,
    *,
    mode: QuiesceMode | None = QuiesceMode.IMMEDIATE,
    awaited_nodes: tuple[str, ...] = (),
    time_account_before: TimeAccount | None = None,
) -> None:
    """Let generation g + 1 take the place of whatever is under way.

    Args:
        turn: the decision.
        history: what the transition is about.
        reason: why it is opened, in words.
        mode: when engines stop.
        awaited_nodes: nodes whose engines must be ready before anything is sent.
        time_account_before: the job's time before the fault that some may compute through.
    """
    generation = turn.run.generation + 1
    lets_train = mode is QuiesceMode.AT_COMMIT or awaited_nodes
    turn.drop_superseded()
    turn.change(
        generation=generation,
        interrupted=None,
        disturbance=turn.run.disturbance if lets_train else None,
        transition=Transition(
            generation=generation,
            phase=Phase.PREPARING,
            history=history,
            open_time=turn.now.time,
            horizon_seconds=horizon_seconds(turn.run, turn.now.time),
            mode=mode,
            time_account_before=time_account_before,
        ),
    )
    _tell(turn, reason)
    if not turn.run.has_trained:
        turn.set_state(JobState.STARTING)
        turn.account(Activity.STARTING)
    if awaited_nodes:
        begin_preparing(turn, awaited_nodes)
    elif turn.run.has_trained:
        begin_quiescing(turn)
    else:
        choose_first_plan(turn)


def open_online_change(
    turn: Turn, history: TransitionHistory, reason: str, *, asks_anew: bool = False
) -> None:
    """Let generation g + 1 be planned while engines train; they receive nothing before that.

    A question that the planner has been asked already is taken over.

    Args:
        turn: the decision.
        history: what the transition is about.
        reason: why it is opened, in words.
        asks_anew: the question was lost with its owner.
    """
    before = turn.run.transition
    generation = turn.run.generation + 1
    transition = Transition(
        generation=generation,
        phase=Phase.PLANNING,
        history=history,
        open_time=turn.now.time,
        horizon_seconds=horizon_seconds(turn.run, turn.now.time),
        mode=QuiesceMode.AT_COMMIT,
    )
    if before is not None and (before.answer is not None or not asks_anew):
        transition = replace(
            transition,
            horizon_seconds=before.horizon_seconds,
            fault_tolerance=before.fault_tolerance,
            query=before.query,
            answer=before.answer,
            asked_time=before.asked_time,
            answered_time=before.answered_time,
        )
    turn.drop_superseded()
    turn.change(generation=generation, transition=transition)
    _tell(turn, reason)
    begin_online_planning(turn)


def _tell(turn: Turn, reason: str) -> None:
    history = turn.transition.history
    turn.save_generation(history.cause)
    turn.because(reason)
    turn.emit(
        "regrow_started" if turn.transition.regrows else _EVENTS[history.cause],
        f"{reason} (generation {turn.run.generation})",
        cause=str(history.cause),
        nodes_lost=list(history.nodes_lost),
        nodes_joined=list(history.nodes_joined),
    )


def open_again(
    turn: Turn,
    reason: str,
    *,
    counts: bool = True,
    mode: QuiesceMode = QuiesceMode.IMMEDIATE,
) -> None:
    """Begin the transition under way again in the next generation: nobody new was lost."""
    transition = turn.transition
    history = carried_history(turn)
    if transition.begins_at_commit and mode is not QuiesceMode.AT_COMMIT:
        # From now on engines stop for it.
        history = replace(history, start_time=turn.now.time, first_open_time=turn.now.time)
    if counts:
        history = replace(history, num_attempts=history.num_attempts + 1)
    awaited: tuple[str, ...] = ()
    if not turn.run.has_trained:
        awaited = tuple(n for n in transition.awaited_nodes if n in turn.run.nodes)
    computes = mode is QuiesceMode.FENCE and transition.finishes_step
    open_transition(
        turn,
        history,
        reason,
        mode=mode,
        awaited_nodes=awaited,
        time_account_before=transition.time_account_before if computes else None,
    )


def fence_returned(turn: Turn) -> None:
    """Ask all that a job has what they hold, when some came back that it waits for."""
    if admit_returned(turn) and turn.run.is_parked:
        history = new_history(turn, Cause.NODE_JOINED)
        open_transition(turn, history, "engines that the job waits for are back")


def carried_history(turn: Turn) -> TransitionHistory:
    """Return the history of the transition under way, for the one that replaces it."""
    history = turn.transition.history
    return replace(history, copied_bytes=history.copied_bytes + turn.transition.copied_bytes)
