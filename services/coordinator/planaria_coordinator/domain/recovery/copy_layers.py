"""The copying phase: engines obtain the layers that the next plan has them hold."""

from collections.abc import Iterable
from datetime import datetime

from planaria_common.words import bytes_in_words
from planaria_coordinator.domain.engines.directive import Copy
from planaria_coordinator.domain.engines.engine import Pending
from planaria_coordinator.domain.engines.outcome import Copied, Failure
from planaria_coordinator.domain.job.refused import note_start_failure, refuse_node
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.replicas import (
    choose_sources,
    layers_of_version,
    missing_layers,
)
from planaria_coordinator.domain.recovery.activation import begin_activation
from planaria_coordinator.domain.recovery.transition import Phase


def begin_copying(turn: Turn, missing: dict[str, tuple[int, ...]]) -> None:
    num_layers = sum(len(layers) for layers in missing.values())
    turn.enter(Phase.COPYING, f"{len(missing)} engines obtain {num_layers} layers")
    turn.account_phase(Activity.COPY)
    _send_copies(turn, missing, attempt=1)


def _send_copies(turn: Turn, missing: dict[str, tuple[int, ...]], *, attempt: int) -> None:
    transition = turn.transition
    sources = choose_sources(
        missing,
        transition.holdings,
        turn.run.engines,
        transition.answer.copies if transition.answer else (),
        skip=attempt - 1,
    )
    for engine_id, layers in sources.items():
        held_by_others = {source.layer for source in layers}
        command = Copy(
            layers=layers,
            version=transition.target_steps,
            initial_layers=tuple(x for x in missing[engine_id] if x not in held_by_others),
        )
        turn.send(
            turn.run.engines[engine_id],
            command,
            allow_seconds=seconds_for_layers(turn, missing[engine_id]),
            attempt=attempt,
        )


def seconds_for_layers(turn: Turn, layers: tuple[int, ...]) -> float:
    """Return how long moving the state of layers may take before it counts as hanging."""
    num_bytes = sum(turn.run.requirements.layers[layer].state_bytes for layer in layers)
    return turn.limits.directive_seconds + num_bytes / turn.limits.copy_bytes_per_second


def on_copied(turn: Turn, pending: Pending, outcome: Copied) -> None:
    """Note that an engine has its layers; when all have, send the assignments."""
    transition = turn.transition
    version = transition.target_steps
    held = layers_of_version(outcome.layers, version)
    turn.note(
        holdings={**transition.holdings, pending.engine_id: held},
        copied={**transition.copied, pending.engine_id: outcome},
    )
    if _still_missing(turn, pending.engine_id):
        copy_failed(turn, pending, f"layers of version {version} are still missing")
    else:
        _go_on_when_all_have_answered(turn)


def _go_on_when_all_have_answered(turn: Turn) -> None:
    if turn.is_awaiting("copy"):
        return
    if not turn.run.engines.keys() >= turn.target.engine_ids:
        turn.retry_reason = "nodes of the plan could not read the initial state"
        return
    outcomes = turn.transition.copied
    emit_layers_copied(
        turn,
        outcomes,
        turn.transition.copied_bytes,
        start_time=min(outcome.start_time for outcome in outcomes.values()),
        end_time=max(outcome.end_time for outcome in outcomes.values()),
    )
    begin_activation(turn)


def initial_state_failed(turn: Turn, pending: Pending, failure: Failure) -> None:
    """Do without a node that cannot read it; the job fails once no node can.

    Who has read it before has some trouble with its storage, and tries again.
    """
    if turn.run.has_trained or turn.run.was_restored:
        turn.retry_reason = failure.message
        return
    note_start_failure(turn, failure)
    refuse_node(turn, pending.node_id, failure.message)
    _go_on_when_all_have_answered(turn)


def _still_missing(turn: Turn, engine_id: str) -> tuple[int, ...]:
    target = turn.target
    missing = missing_layers(
        target.plan, target.stage_engines, turn.transition.holdings, turn.run.requirements
    )
    return missing.get(engine_id, ())


def copy_failed(turn: Turn, pending: Pending, message: str) -> None:
    """Try again from another source; an engine that cannot copy at all is given up.

    Not one that holds layers of its own: it lives, and the change is what fails.
    """
    missing = _still_missing(turn, pending.engine_id)
    if pending.num_attempt < turn.limits.num_attempts and missing:
        turn.because(f"{pending.engine_id} copies again: {message}")
        _send_copies(turn, {pending.engine_id: missing}, attempt=pending.num_attempt + 1)
        return
    if _has_own_layers(turn, pending.engine_id):
        turn.retry_reason = f"{pending.engine_id} could not obtain its layers: {message}"
    else:
        turn.silent_engines[pending.engine_id] = f"it could not obtain its layers: {message}"


def _has_own_layers(turn: Turn, engine_id: str) -> bool:
    report = turn.transition.reports.get(engine_id)
    version = turn.transition.target_steps
    return report is not None and bool(layers_of_version(report.layers, version))


def emit_layers_copied(
    turn: Turn,
    engine_ids: Iterable[str],
    num_bytes: int,
    *,
    start_time: datetime,
    end_time: datetime,
) -> None:
    """Say what has been copied to these engines, and how long it took."""
    if not num_bytes:
        return
    seconds = max(0.0, (end_time - start_time).total_seconds())
    nodes = sorted({turn.run.engines[engine_id].node_id for engine_id in engine_ids})
    turn.emit(
        "layers_copied",
        f"{bytes_in_words(num_bytes)} of parameters and optimizer state copied to "
        f"{', '.join(nodes)} in {seconds:.3f} s",
        bytes=num_bytes,
        seconds=seconds,
        nodes=nodes,
    )
