"""A node or an engine is lost: begin a recovery (protocol/job.md, rules 1 and 2)."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.engines.preparing import (
    await_nodes,
    cancel_join,
    check_prepared,
    note_failure,
    prepare_failed,
)
from planaria_coordinator.domain.job.cordons import cordon, forget_cordon, suspects
from planaria_coordinator.domain.job.refused import refuse_node
from planaria_coordinator.domain.job.signals import (
    EngineLost,
    NodeLost,
)
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Loss, Turn
from planaria_coordinator.domain.placement.peers import holds_every_layer
from planaria_coordinator.domain.recovery.opening import (
    carried_history,
    new_history,
    open_online_change,
    open_transition,
)
from planaria_coordinator.domain.recovery.transition import Cause, Phase, TransitionHistory
from planaria_coordinator.domain.recovery.transition_completion import complete_recovery
from planaria_coordinator.domain.recovery.unreachable_holders import (
    forget_holders,
    note_away,
    note_unreachable,
)

MAX_MESSAGE_CHARACTERS = 300


def node_lost(turn: Turn, signal: NodeLost) -> None:
    """A node is lost with everything on it; unless it is gone, it may come back with that."""
    run = turn.run
    node_id = signal.node_id
    if signal.gone:
        forget_holders(turn, [e for e, h in run.absent.items() if h.node.node_id == node_id])
    elif not run.state.is_terminal:
        note_away(turn, node_id)
        note_unreachable(turn, node_id, signal.fault_time)
    for engine_id in [e for e, node in run.stopping.items() if node == node_id]:
        turn.forget_stopping(engine_id)
    gone = [engine.id for engine in run.engines.values() if engine.node_id == node_id]
    turn.remove_engines(gone)
    turn.change(
        nodes={key: facts for key, facts in turn.run.nodes.items() if key != node_id},
        draining=tuple(key for key in turn.run.draining if key != node_id),
        refused={key: why for key, why in turn.run.refused.items() if key != node_id},
        failure_times={k: t for k, t in turn.run.failure_times.items() if k != node_id},
    )
    if turn.run.state.is_terminal:
        complete_recovery(turn, node_id)
        return
    reason = f"{node_id} is lost ({signal.reason})"
    note_loss(turn, gone, reason, fault_time=signal.fault_time, node_id=node_id)


def engine_lost(turn: Turn, signal: EngineLost, *, seen_by: Collection[str] = ()) -> None:
    """An engine is gone, or is made to go.

    Args:
        turn: the decision.
        signal: what is known.
        seen_by: the nodes that alone say so. It may have been the network: that counts as no
            failure of its node, which is left out for a while if it happens again.
    """
    engine_id = signal.engine_id
    if engine_id in turn.run.stopping and signal.process_ended:
        turn.forget_stopping(engine_id)
        _note_own_end(turn, engine_id, signal.fault_time)
        return
    if engine_id in turn.run.absent and signal.process_ended:
        forget_holders(turn, [engine_id])
        return
    engine = turn.run.engines.get(engine_id)
    if engine is None:
        return
    if not engine.prepared:
        message = f"an engine on {engine.node_id} did not start: {signal.reason}"
        metadata = {"node_id": engine.node_id, "detail": signal.reason}
        failure = Failure(reason=ErrorReason.ENGINE_FAILED, message=message, metadata=metadata)
        prepare_failed(turn, engine, failure)
        return
    before = tuple(turn.run.engines)
    if signal.process_ended:
        turn.remove_engines([engine_id])
    else:
        turn.stop_engines([engine_id], signal.reason)
    _tell(turn, engine_id, signal.reason)
    if seen_by:
        cordon(turn, engine.node_id, signal.reason, seen_by, first_pause_seconds=0.0)
        _stop_if_left_out(turn, engine.node_id)
    else:
        _strike(turn, engine.node_id)
    reason = f"{engine_id} is lost ({signal.reason})"
    note_loss(turn, _gone_since(turn, before), reason, fault_time=signal.fault_time)


def _note_own_end(turn: Turn, engine_id: str, fault_time: datetime) -> None:
    """An engine that others saw end had ended before it was told to: it was no broken link."""
    node_id = node_of(engine_id)
    if node_id in suspects(turn):
        before, why = tuple(turn.run.engines), f"{turn.limits.num_attempts} engines failed on it"
        forget_cordon(turn, node_id)
        strike_spare_node(turn, node_id, why)
        gone = _gone_since(turn, before)
        if gone:
            note_loss(turn, gone, f"{node_id} is refused: {why}", fault_time=fault_time)


def _stop_if_left_out(turn: Turn, node_id: str) -> None:
    if node_id in turn.run.left_out:
        others = [e.id for e in turn.run.engines.values() if e.node_id == node_id]
        turn.stop_engines(others, turn.run.left_out[node_id])
        turn.release_empty_nodes()


def _gone_since(turn: Turn, before: Iterable[str]) -> list[str]:
    """A node that is refused, or left out, for one engine takes its other engines with it."""
    return [engine_id for engine_id in before if engine_id not in turn.run.engines]


def _tell(turn: Turn, engine_id: str, reason: str) -> None:
    message = f"{engine_id} is lost: {reason}"
    turn.emit("engine_lost", message, node_id=node_of(engine_id), engine_id=engine_id)


def _strike(turn: Turn, node_id: str) -> None:
    if note_failure(turn, node_id) >= turn.limits.num_attempts:
        refuse_node(turn, node_id, f"{turn.limits.num_attempts} engines failed on it")


def strike_spare_node(turn: Turn, node_id: str, reason: str) -> None:
    """Count a failure against a node whose engines live, and refuse it after several.

    Not one that holds the only replica of a layer.
    """
    if note_failure(turn, node_id) >= turn.limits.num_attempts and is_spare(turn, node_id):
        refuse_node(turn, node_id, reason)


def is_spare(turn: Turn, node_id: str) -> bool:
    """Whether other nodes hold every layer, apart from engines found wanting in this decision.

    They must in every placement that may be in force.
    """
    run = turn.run

    def is_elsewhere(engine_id: str) -> bool:
        is_counted = engine_id in run.engines and engine_id not in turn.silent_engines
        return is_counted and node_of(engine_id) != node_id

    return bool(run.placements) and all(
        holds_every_layer(placement, is_elsewhere, run.requirements) for placement in run.placements
    )


def lose_silent_engines(turn: Turn) -> None:
    """Declare lost those that this decision has found wanting, all in one transition."""
    silent = {e: why for e, why in turn.silent_engines.items() if e in turn.run.engines}
    turn.silent_engines.clear()
    if not silent:
        return
    before = tuple(turn.run.engines)
    for engine_id, why in silent.items():
        turn.stop_engines([engine_id], why)
    for engine_id, why in silent.items():
        _tell(turn, engine_id, why)
        _strike(turn, node_of(engine_id))
    reasons = "; ".join(f"{engine_id} is lost ({why})" for engine_id, why in silent.items())
    note_loss(turn, _gone_since(turn, before), reasons, fault_time=turn.now.time)


def note_loss(
    turn: Turn, gone: Iterable[str], reason: str, *, fault_time: datetime, node_id: str = ""
) -> None:
    """Recover from a loss before the decision ends, and from all others together with it."""
    loss = Loss(engines=tuple(gone), reason=reason, fault_time=fault_time, node_id=node_id)
    turn.losses.append(loss)


def recover_from_losses(turn: Turn) -> None:
    """Begin one recovery from all that was found to be lost."""
    losses, turn.losses = turn.losses, []
    if losses:
        _after_loss(
            turn,
            [engine_id for loss in losses for engine_id in loss.engines],
            "; ".join(loss.reason for loss in losses),
            fault_time=min(loss.fault_time for loss in losses),
            node_ids=[loss.node_id for loss in losses if loss.node_id],
        )


def _after_loss(
    turn: Turn, gone: list[str], reason: str, *, fault_time: datetime, node_ids: list[str]
) -> None:
    was_seen = False
    for node_id in node_ids:
        was_seen |= _complete_history(turn, node_id)
    run = turn.run
    transition = run.transition
    is_wounded = not run.required_engines.isdisjoint(gone)
    if transition is None:
        if is_wounded:
            _open_recovery(turn, fault_history(turn, fault_time), gone, reason, node_ids)
    elif transition.phase is Phase.PREPARING:
        if is_wounded:
            _open_recovery(turn, fault_history(turn, fault_time), gone, reason, node_ids)
        else:
            _recreate(turn, gone)
            check_prepared(turn)
    elif transition.is_online and gone and not is_wounded:
        _plan_again_without(turn, gone, reason, node_ids)
    elif _concerns(turn, gone):
        _open_recovery(turn, _merged_history(turn, fault_time), gone, reason, node_ids)
    elif was_seen:
        turn.because(f"{reason}, as its engine was before")


def _complete_history(turn: Turn, node_id: str) -> bool:
    """Say of a node whose engine was seen to die first that all of it is gone; whether one was."""
    run = turn.run
    history = run.transition.history if run.transition else run.interrupted
    if history is None or node_id not in map(node_of, history.engines_lost):
        return complete_recovery(turn, node_id)
    history = _with_losses(history, [], [node_id])
    if run.transition:
        turn.note(history=history)
    else:
        turn.change(interrupted=history)
    return True


def _concerns(turn: Turn, gone: Iterable[str]) -> bool:
    """Whether the transition under way needs an engine that is gone."""
    transition = turn.transition
    required_engines = turn.run.required_engines.union(transition.participants)
    if transition.target is not None:
        required_engines |= transition.target.engine_ids
    if not turn.run.has_trained:
        # The first plan is made for all engines there are.
        return bool(set(gone))
    if transition.target is None and not _asked_for(turn).isdisjoint(map(node_of, gone)):
        return True  # the planner may be planning for it
    return not required_engines.isdisjoint(gone)


def _asked_for(turn: Turn) -> frozenset[str]:
    """Return the nodes that the planner was asked to plan on."""
    query = turn.transition.query
    return frozenset() if query is None else frozenset(node.node_id for node in query.nodes)


def _plan_again_without(
    turn: Turn, gone: Iterable[str], reason: str, node_ids: Iterable[str]
) -> None:
    """Plan again without a lost engine that was to join: training has not noticed."""
    if _asked_for(turn).isdisjoint(map(node_of, gone)):
        return
    lost = {*node_ids, *(node_of(engine_id) for engine_id in gone)}
    history = carried_history(turn)
    joining = tuple(n for n in history.nodes_joined if n not in lost)
    is_join = history.cause is Cause.NODE_JOINED and turn.transition.begins_at_commit
    if is_join and not joining:
        turn.because(reason)
        cancel_join(turn)
    else:
        open_online_change(turn, replace(history, nodes_joined=joining), reason)


def _recreate(turn: Turn, gone: Iterable[str]) -> None:
    """Start another engine where one that was awaited has died on a living node."""
    awaited = [
        node_id
        for node_id in turn.transition.awaited_nodes
        if node_id in turn.run.nodes and any(node_of(e) == node_id for e in gone)
    ]
    if awaited:
        await_nodes(turn, tuple(awaited))


def fault_history(turn: Turn, fault_time: datetime) -> TransitionHistory:
    fault_time = min(fault_time, turn.now.time)
    if turn.run.disturbance is not None:  # its peers noticed before the death was known
        fault_time = min(fault_time, turn.run.disturbance.fault_time)
    return new_history(turn, Cause.ENGINE_LOST, start_time=fault_time)


def _merged_history(turn: Turn, fault_time: datetime) -> TransitionHistory:
    history = carried_history(turn)
    if history.cause is Cause.FINISHED:
        return fault_history(turn, fault_time)
    if turn.transition.begins_at_commit:  # the fault is what counts now
        now = turn.now.time
        history = replace(history, start_time=min(fault_time, now), first_open_time=now)
    cause = history.cause if history.cause in (Cause.START, Cause.NODE_LOST) else Cause.ENGINE_LOST
    return replace(history, cause=cause, num_attempts=0)


def _with_losses(
    history: TransitionHistory, engine_ids: Iterable[str], node_ids: Collection[str]
) -> TransitionHistory:
    engines_lost = tuple(dict.fromkeys((*history.engines_lost, *engine_ids)))
    nodes_joined = tuple(n for n in history.nodes_joined if n not in node_ids)
    if not node_ids:
        return replace(history, engines_lost=engines_lost)
    return replace(
        history,
        cause=history.cause if history.cause is Cause.START else Cause.NODE_LOST,
        engines_lost=engines_lost,
        nodes_lost=tuple(dict.fromkeys((*history.nodes_lost, *node_ids))),
        nodes_joined=nodes_joined,
    )


def _open_recovery(
    turn: Turn,
    history: TransitionHistory,
    gone: Iterable[str],
    reason: str,
    node_ids: Collection[str],
) -> None:
    history = _with_losses(history, gone, node_ids)
    last_fault = reason[:MAX_MESSAGE_CHARACTERS]
    turn.change(num_faults=turn.run.num_faults + 1, last_fault=last_fault)
    fenced = turn.run.transition
    time_account_before = (
        turn.run.time_account
    )  # of the first fault that nobody has computed through yet
    if fenced is not None and fenced.mode is QuiesceMode.FENCE:
        time_account_before = fenced.time_account_before or time_account_before
    account_detection(turn, history.start_time)
    awaited = () if turn.run.has_trained else tuple(turn.run.nodes)
    # A job that is to pause need not finish the step in flight.
    mode = QuiesceMode.IMMEDIATE if turn.run.pause_wanted else QuiesceMode.FENCE
    open_transition(
        turn,
        history,
        reason,
        mode=mode,
        awaited_nodes=awaited,
        time_account_before=time_account_before,
    )


def account_detection(turn: Turn, fault_time: datetime) -> None:
    """From the fault on, time was no longer productive."""
    if turn.run.time_account.current is Activity.PRODUCTIVE:
        turn.account(Activity.DETECT, at=fault_time)
