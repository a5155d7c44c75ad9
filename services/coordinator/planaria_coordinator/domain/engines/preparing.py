"""Engines that start: on the job's first nodes, and on joiners while the others train."""

from collections import Counter
from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_common.words import counted
from planaria_coordinator.domain.engines.directive import InitialState, QuiesceMode
from planaria_coordinator.domain.engines.engine import Engine, Pending
from planaria_coordinator.domain.engines.outcome import Failure, Prepared
from planaria_coordinator.domain.job.ending import fail, park, pause_waiting
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.model_profile import reported_layers
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.recovery.fencing import begin_online_planning, begin_quiescing
from planaria_coordinator.domain.recovery.transition import Phase

_WORTH_ANOTHER_TRY = (ErrorReason.ENGINE_FAILED, ErrorReason.UNAVAILABLE, ErrorReason.INTERNAL)
_NEEDED_TO_TALK = ("transport",)
"""Entries of a fingerprint that are compared whatever the job: engines with others never meet."""


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


def prepared(turn: Turn, pending: Pending, outcome: Prepared) -> None:
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
        base=outcome.base,
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
    difference = _difference(turn, engine) if turn.run.data_digest else None
    if difference is not None:
        refuse_node(turn, engine.node_id, difference.message)
    check_prepared(turn)


def prepare_failed(turn: Turn, engine: Engine, failure: Failure) -> None:
    """An engine could not start: try again, do without its node, or give up the job."""
    if engine.id in turn.run.engines:
        turn.remove_engines([engine.id])
    retryable = failure.reason in _WORTH_ANOTHER_TRY
    starting = not turn.run.has_trained
    if starting and not retryable:
        fail(turn, failure.reason, failure.message, failure.metadata)
        return
    turn.emit("engine_not_started", failure.message, node_id=engine.node_id)
    awaited = turn.run.transition is not None and (
        engine.node_id in turn.run.transition.awaited_nodes
    )
    if retryable and note_failure(turn, engine.node_id) < turn.limits.num_attempts:
        if awaited and turn.transition.phase is Phase.PREPARING:
            turn.create_engine(engine.node_id, engine.accelerator)
        return
    refuse_node(turn, engine.node_id, failure.message)
    if starting and len(turn.run.nodes) < turn.run.nodes_per_replica:
        fail(turn, failure.reason, failure.message, failure.metadata)
        return
    check_prepared(turn)


def note_failure(turn: Turn, node_id: str) -> int:
    """Count a failure against a node, and return how many it has had lately."""
    window = turn.limits.failure_window_seconds
    recent = tuple(
        time
        for time in turn.run.failure_times.get(node_id, ())
        if (turn.now.time - time).total_seconds() < window
    )
    times = (*recent, turn.now.time)
    turn.change(failure_times={**turn.run.failure_times, node_id: times})
    return len(times)


def refuse_node(turn: Turn, node_id: str, reason: str) -> None:
    """Do without a node for the rest of this job."""
    turn.change(refused={**turn.run.refused, node_id: reason})
    turn.stop_engines([e.id for e in turn.run.engines.values() if e.node_id == node_id], reason)
    turn.release_empty_nodes()
    turn.emit("node_refused", f"{node_id} cannot serve this job: {reason}", node_id=node_id)


def check_prepared(turn: Turn) -> None:
    """Go on with the transition when nobody is awaited any more."""
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
        _start_training(turn)


def _let_join(turn: Turn, joiners: list[str]) -> None:
    if joiners:
        story = replace(turn.transition.story, nodes_joined=tuple(joiners))
        turn.note(story=story)
        if turn.transition.mode is QuiesceMode.AT_COMMIT:
            begin_online_planning(turn)
        else:
            begin_quiescing(turn)
        return
    cancel_join(turn)


def cancel_join(turn: Turn) -> None:
    """Nobody is left to join: whoever trains has noticed nothing, and a job that waits does so on.

    It still has a recovery to tell of, which the join had taken over.
    """
    run = turn.run
    waits = run.state is JobState.WAITING
    turn.drop_superseded()
    turn.change(transition=None, interrupted=run.unreported_recovery)
    goes_on = "the job waits" if waits else "training goes on"
    turn.emit("join_cancelled", f"the nodes that were to join are gone; {goes_on} as it was")
    if waits and run.pause_wanted:
        pause_waiting(turn)
    turn.because("nobody is left to join")


def _start_training(turn: Turn) -> None:
    run = turn.run
    if len(run.usable_nodes) < run.nodes_per_replica:
        num_nodes = counted(len(run.usable_nodes), "node")
        message = f"{num_nodes} ready, and the model needs {run.nodes_per_replica}"
        park(turn, JobState.PENDING, message)  # the scheduler says what it waits for
        return
    if not run.data_digest:
        _take_reference(turn)
        for engine in tuple(turn.run.prepared_engines.values()):
            difference = _difference(turn, engine)
            if difference is not None:
                fail(turn, difference.reason, difference.message, difference.metadata)
                return
    if run.pause_wanted:
        park(turn, JobState.PAUSED, "the job stands still before its first step")
    else:
        begin_quiescing(turn)


def _take_reference(turn: Turn) -> None:
    """What most nodes see is what the job is trained on."""
    engines = sorted(turn.run.prepared_engines.values(), key=lambda engine: engine.node_id)

    def view(engine: Engine) -> tuple[str, str, InitialState | None, tuple[tuple[str, str], ...]]:
        fingerprint = tuple(sorted(engine.fingerprint.items()))
        return engine.data_digest, engine.model_digest, engine.base, fingerprint

    counts = Counter(view(engine) for engine in engines)
    reference = max(engines, key=lambda engine: counts[view(engine)])
    turn.change(
        data_digest=reference.data_digest,
        model_digest=reference.model_digest,
        fingerprint=reference.fingerprint,
        reference_node_id=reference.node_id,
        base=reference.base,
        committed_steps=reference.base.step if reference.base is not None else 0,
    )
    requirements = turn.run.requirements
    if not requirements.layers:  # only who has built the model knows them
        known = replace(
            requirements,
            layers=reported_layers(reference.measured_layers),
            ties_embeddings=reference.ties_embeddings,
        )
        turn.change(requirements=known)


def _difference(turn: Turn, engine: Engine) -> Failure | None:
    """Say how a node differs from the one that the job's data and environment were taken from."""
    run = turn.run
    if engine.data_digest != run.data_digest:
        path = run.requirements.data_in_words
        return Failure(
            reason=ErrorReason.DATA_MISMATCH,
            message=f"{engine.node_id} sees other contents at {path} than "
            f"{run.reference_node_id}: the files must be the same on all nodes",
            metadata={"node_id": engine.node_id, "path": path},
        )
    if engine.model_digest != run.model_digest:
        return Failure(
            reason=ErrorReason.ENVIRONMENT_MISMATCH,
            message=f"{engine.node_id} has another source of model.import_path than "
            f"{run.reference_node_id}: the module must be the same on all nodes",
            metadata={"node_id": engine.node_id, "field": "model.import_path"},
        )
    if engine.base != run.base:
        path = run.requirements.init_from
        return Failure(
            reason=ErrorReason.INIT_MISMATCH,
            message=f"{engine.node_id} sees other contents at {path} (init_from) than "
            f"{run.reference_node_id}: they must be the same on all nodes",
            metadata={"node_id": engine.node_id, "path": path},
        )
    return _environment_difference(run, engine)


def _environment_difference(run: JobRun, engine: Engine) -> Failure | None:
    who, names = "every job", {*_NEEDED_TO_TALK}
    if run.requirements.reproducible:
        who, names = "a reproducible job", {*run.fingerprint, *engine.fingerprint}
    for name in sorted(names):
        mine, reference = engine.fingerprint.get(name, ""), run.fingerprint.get(name, "")
        if mine != reference:
            return Failure(
                reason=ErrorReason.ENVIRONMENT_MISMATCH,
                message=f"{engine.node_id} has {name} {mine or 'unset'}, {run.reference_node_id} "
                f"has {reference or 'unset'}: {who} needs them equal",
                metadata={"node_id": engine.node_id, "field": name},
            )
    return None
