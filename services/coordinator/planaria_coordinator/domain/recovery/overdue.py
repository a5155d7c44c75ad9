"""Directives that were not answered in time."""

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.checkpoint import checkpoint_protocol
from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.engine import Pending
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.engines.preparing import (
    prepare_failed,
)
from planaria_coordinator.domain.job.cordons import cordons_overdue
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.job.waiting import rest_overdue
from planaria_coordinator.domain.recovery.broken_communication import disturbance_overdue
from planaria_coordinator.domain.recovery.handover import staging_overdue
from planaria_coordinator.domain.recovery.lost_engines import is_spare
from planaria_coordinator.domain.recovery.opening import (
    open_again,
)
from planaria_coordinator.domain.recovery.transition import Phase
from planaria_coordinator.domain.recovery.unreachable_holders import holders_overdue


def overdue(turn: Turn, absent_nodes: frozenset[str]) -> None:
    """Act on what has not been answered in time, where there is an agent that could answer."""
    rest_overdue(turn)
    cordons_overdue(turn)
    holders_overdue(turn)
    disturbance_overdue(turn, absent_nodes)
    checkpoint_protocol.overdue(turn)
    late = sorted(
        (
            pending
            for pending in turn.run.pending.values()
            if pending.deadline_seconds <= turn.now.seconds and pending.node_id not in absent_nodes
        ),
        key=lambda pending: pending.directive_id,
    )
    for pending in late:
        if pending.directive_id in turn.run.pending:
            _overdue(turn, pending)


def _overdue(turn: Turn, pending: Pending) -> None:
    transition = turn.run.transition
    if pending.kind == "stop":
        turn.forget_stopping(pending.engine_id)
    elif pending.kind in ("write_checkpoint", "seal_checkpoint", "discard_checkpoint"):
        checkpoint_protocol.directive_overdue(turn, pending)
    elif pending.kind == "prepare":
        engine = turn.run.engines[pending.engine_id]
        turn.stop_engines([engine.id], "it did not start in time")
        detail = f"not ready after {turn.limits.prepare_seconds:.0f} s"
        message = f"an engine on {engine.node_id} did not start: {detail}"
        metadata = {"node_id": engine.node_id, "detail": detail}
        failure = Failure(reason=ErrorReason.ENGINE_FAILED, message=message, metadata=metadata)
        prepare_failed(turn, engine, failure)
    elif transition and transition.phase is Phase.STAGING:
        staging_overdue(turn, pending)
    elif (
        transition
        and transition.mode is QuiesceMode.AT_COMMIT
        and pending.kind in ("quiesce", "switch")
    ):
        open_again(turn, "the step in flight does not end", counts=False)
    elif transition and _is_asked_again(turn, pending):
        holder = f"{pending.engine_id} has not done {pending.kind} in time"
        turn.retry_reason = f"{holder}, and nobody else holds its layers"
    else:
        turn.silent_engines[pending.engine_id] = f"no answer to {pending.kind} in time"


def refused(turn: Turn, pending: Pending, reason: str) -> None:
    """Give up an engine that does not do what it must.

    Whose layers nobody else holds is asked again at the deadline, as if it had said nothing: to ask
    it at once would give the same answer at once, without end.
    """
    if turn.run.transition is not None and _is_asked_again(turn, pending):
        turn.change(pending={**turn.run.pending, pending.directive_id: pending})
        turn.because(f"{pending.engine_id}: {reason}; it is asked again later")
    else:
        turn.silent_engines[pending.engine_id] = reason


def _is_asked_again(turn: Turn, pending: Pending) -> bool:
    """Whether an engine holds the only replica of a layer: to stop it would end its state.

    After some attempts the job goes back to its newest checkpoint, if it has one.
    """
    is_last_try = turn.transition.history.num_attempts + 1 >= turn.limits.num_attempts
    may_go_back = bool(turn.run.newest_checkpoint) and is_last_try
    is_of_trained = turn.run.has_trained and pending.kind != "copy"
    return is_of_trained and not may_go_back and not is_spare(turn, pending.node_id)
