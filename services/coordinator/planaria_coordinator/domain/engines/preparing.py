"""Engines that start: on the job's first nodes, and on joiners while the others train."""

from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.engine import Engine, Pending
from planaria_coordinator.domain.engines.outcome import Failure, Prepared
from planaria_coordinator.domain.job.cordons import cordon, lift_cordons
from planaria_coordinator.domain.job.ending import park, pause_waiting
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.refused import note_start_failure, refuse_node
from planaria_coordinator.domain.job.start_of_training import (
    difference_to_reference,
    start_training,
)
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.job.waiting import announce_waiting, rest, set_back
from planaria_coordinator.domain.placement.ask_planner import begin_online_planning
from planaria_coordinator.domain.recovery.fencing import begin_quiescing
from planaria_coordinator.domain.recovery.transition import Phase

_WORTH_ANOTHER_TRY = (ErrorReason.ENGINE_FAILED, ErrorReason.UNAVAILABLE, ErrorReason.INTERNAL)


def begin_preparing(turn: Turn, node_ids: tuple[str, ...]) -> None:
    """Start the engines that these nodes lack, and go on when all are ready."""
    turn.enter(Phase.PREPARING, f"engines start on {', '.join(node_ids)}")
    await_nodes(turn, node_ids)
    check_prepared(turn)


def await_nodes(turn: Turn, node_ids: tuple[str, ...]) -> None:
    """Add nodes to those whose engines the transition waits for."""
    awaited = tuple(dict.fromkeys((*turn.transition.awaited_nodes, *node_ids)))
    turn.note(awaited_nodes=awaited)
    for node_id in node_ids:
        present = {e.accelerator for e in turn.run.engines.values() if e.node_id == node_id}
        for accelerator in range(turn.run.nodes[node_id].num_accelerators):
            if accelerator not in present:
                turn.create_engine(node_id, accelerator)


def on_prepared(turn: Turn, pending: Pending, outcome: Prepared) -> None:
    """An engine is ready; it may belong to a transition that a newer one has replaced."""
    engine = replace(
        turn.run.engines[pending.engine_id],
        prepared=True,
        data_address=outcome.engine.data_address,
        store_address=outcome.engine.store_address,
        data_digest=outcome.data_digest,
        fingerprint=dict(outcome.fingerprint),
        measured_layers=outcome.measured_layers,
        model_digest=outcome.model_digest,
        peak_flops_per_second=outcome.peak_flops_per_second,
        initial_state=outcome.initial_state,
        ties_embeddings=outcome.ties_embeddings,
    )
    suspected = {k: each for k, each in turn.run.suspected.items() if k != engine.node_id}
    turn.change(engines={**turn.run.engines, engine.id: engine}, suspected=suspected)
    turn.emit(
        "engine_ready",
        f"an engine on {engine.node_id} is ready",
        node_id=engine.node_id,
        engine_id=engine.id,
    )
    difference = difference_to_reference(turn, engine) if turn.run.data_digest else None
    if difference is not None:
        refuse_node(turn, engine.node_id, difference.message)
    check_prepared(turn)


def prepare_failed(turn: Turn, engine: Engine, failure: Failure) -> None:
    """An engine could not start: try again, or do without its node.

    A job that has not trained and is left without nodes waits for others.
    """
    if engine.id in turn.run.engines:
        turn.remove_engines([engine.id])
    retryable = failure.reason in _WORTH_ANOTHER_TRY
    starting = not turn.run.has_trained
    turn.emit("engine_not_started", failure.message, node_id=engine.node_id)
    awaited = turn.run.transition is not None and (
        engine.node_id in turn.run.transition.awaited_nodes
    )
    if retryable and note_failure(turn, engine.node_id) < turn.limits.num_attempts:
        if awaited and turn.transition.phase is Phase.PREPARING:
            turn.create_engine(engine.node_id, engine.accelerator)
        return
    if failure.reason is ErrorReason.UNAVAILABLE or turn.run.was_restored:
        _leave_out(turn, engine.node_id, failure.message)
    else:
        refuse_node(turn, engine.node_id, failure.message)
    if starting and not turn.run.nodes:
        if turn.run.left_out:
            lift_cordons(turn)
            set_back(turn, failure.message)
            rest(turn)
        else:
            _wait_for_others(turn, failure)
        return
    check_prepared(turn)


def _wait_for_others(turn: Turn, failure: Failure) -> None:
    """Let the scheduler give the job other nodes; it fails once they have all been refused."""
    note_start_failure(turn, failure)
    if turn.run.transition is not None:
        park(turn, JobState.PENDING, failure.message)
    if turn.run.pause_wanted:
        pause_waiting(turn)
    else:
        announce_waiting(turn, failure.message)


def _leave_out(turn: Turn, node_id: str, reason: str) -> None:
    """Do for a while without a node that lacks something, such as room on a disk."""
    cordon(turn, node_id, reason, ())
    turn.change(failure_times={k: t for k, t in turn.run.failure_times.items() if k != node_id})
    turn.stop_engines([e.id for e in turn.run.engines.values() if e.node_id == node_id], reason)
    turn.release_empty_nodes()


def note_failure(turn: Turn, node_id: str) -> int:
    """Count a failure against a node, and return how many it has had lately."""
    window = turn.limits.failure_window_seconds
    recent = tuple(
        time
        for time in turn.run.failure_times.get(node_id, ())
        if abs((turn.now.time - time).total_seconds()) < window  # somebody may set the clock
    )
    times = (*recent, turn.now.time)
    turn.change(failure_times={**turn.run.failure_times, node_id: times})
    return len(times)


def check_prepared(turn: Turn) -> None:
    """Go on with the transition when no engine is awaited any more."""
    run = turn.run
    if run.transition is None or run.transition.phase is not Phase.PREPARING:
        return
    awaited = [n for n in run.transition.awaited_nodes if n in run.nodes]
    usable = run.usable_nodes
    if any(node_id not in usable for node_id in awaited):
        return
    if run.has_trained:
        _let_join(turn, awaited)
    else:
        start_training(turn)


def _let_join(turn: Turn, joiners: list[str]) -> None:
    if joiners:
        history = replace(turn.transition.history, nodes_joined=tuple(joiners))
        turn.note(history=history)
        if turn.transition.mode is QuiesceMode.AT_COMMIT:
            begin_online_planning(turn)
        else:
            begin_quiescing(turn)
        return
    cancel_join(turn)


def cancel_join(turn: Turn) -> None:
    """Give up a join whose nodes are gone: training, or waiting, continues.

    A waiting job still has a recovery to report, which the join had taken over.
    """
    run = turn.run
    waits = run.state is JobState.WAITING
    turn.drop_superseded()
    turn.change(transition=None, interrupted=run.unreported_recovery)
    goes_on = "the job waits" if waits else "training continues"
    turn.emit("join_cancelled", f"the nodes that were to join are gone; {goes_on} as it was")
    if waits and run.pause_wanted:
        pause_waiting(turn)
    turn.because("no node is left to join")
