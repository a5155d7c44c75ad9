"""The start of training: check that all engines see the same files, and ask for the first plan."""

from collections import Counter
from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_common.words import counted
from planaria_coordinator.domain.engines.directive import InitialState
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.ending import park
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.model_profile import reported_layers
from planaria_coordinator.domain.job.refused import refuse_node
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.job.waiting import rest, set_back
from planaria_coordinator.domain.placement.choose_plan import choose_plan

_NEEDED_TO_TALK = ("transport",)
"""Entries of a fingerprint that are compared whatever the job: engines with others never meet."""


def start_training(turn: Turn) -> None:
    """Go on when the first engines are ready: compare what they see, then ask for a plan."""
    run = turn.run
    if len(run.usable_nodes) < run.nodes_per_replica:
        num_nodes = counted(len(run.usable_nodes), "node")
        message = f"{num_nodes} ready, and the model needs {run.nodes_per_replica}"
        park(turn, JobState.PENDING, message)  # the scheduler says what it waits for
        return
    turn.change(start_failure=None)  # some nodes can
    if not run.data_digest:
        _take_reference(turn)
        differences = {
            engine.node_id: difference.message
            for engine in turn.run.prepared_engines.values()
            if (difference := difference_to_reference(turn, engine)) is not None
        }
        num_alike = len(set(turn.run.usable_nodes) - differences.keys())
        if differences and (num_alike < run.nodes_per_replica or num_alike <= len(differences)):
            _look_again_later(turn, run, next(iter(differences.values())))
            return
        for node_id, message in differences.items():
            refuse_node(turn, node_id, message)
    if run.pause_wanted:
        park(turn, JobState.PAUSED, "the job is paused before its first step")
    else:
        choose_first_plan(turn)


def _look_again_later(turn: Turn, before: JobRun, message: str) -> None:
    """Rest when nobody can tell which nodes are right; engines read the files again then."""
    turn.stop_engines(tuple(turn.run.engines), message)
    turn.change(
        data_digest=before.data_digest,
        model_digest=before.model_digest,
        fingerprint=before.fingerprint,
        reference_node_id=before.reference_node_id,
        initial_state=before.initial_state,
        committed_steps=before.committed_steps,
        requirements=before.requirements,
    )
    set_back(turn, message)
    rest(turn)


def choose_first_plan(turn: Turn) -> None:
    """Ask for the plan that training begins with, at the version of the initial state."""
    turn.note(target_steps=turn.run.initial_steps)
    choose_plan(turn)


def _take_reference(turn: Turn) -> None:
    """Take what most nodes see as the reference that all must match."""
    engines = sorted(turn.run.prepared_engines.values(), key=lambda engine: engine.node_id)

    def view(engine: Engine) -> tuple[str, str, InitialState | None, tuple[tuple[str, str], ...]]:
        fingerprint = tuple(sorted(engine.fingerprint.items()))
        return engine.data_digest, engine.model_digest, engine.initial_state, fingerprint

    counts = Counter(view(engine) for engine in engines)
    reference = max(engines, key=lambda engine: counts[view(engine)])
    turn.change(
        data_digest=reference.data_digest,
        model_digest=reference.model_digest,
        fingerprint=reference.fingerprint,
        reference_node_id=reference.node_id,
        initial_state=reference.initial_state,
        committed_steps=reference.initial_state.step if reference.initial_state is not None else 0,
    )
    requirements = turn.run.requirements
    if not requirements.layers:  # known once an engine has built the model
        known = replace(
            requirements,
            layers=reported_layers(reference.measured_layers),
            ties_embeddings=reference.ties_embeddings,
        )
        turn.change(requirements=known)


def difference_to_reference(turn: Turn, engine: Engine) -> Failure | None:
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
    if engine.initial_state != run.initial_state:
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
