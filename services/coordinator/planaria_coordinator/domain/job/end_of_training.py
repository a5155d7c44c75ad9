"""The end of training: digest every layer, write what is to be kept, let the engines go."""

import hashlib
from collections.abc import Mapping

from planaria_common.errors import ErrorReason
from planaria_common.words import bytes_in_words
from planaria_coordinator.domain.engines.directive import DigestLayers, Export, LayerSource
from planaria_coordinator.domain.engines.engine import Pending
from planaria_coordinator.domain.engines.outcome import Digested, Exported, Failure
from planaria_coordinator.domain.job.ending import end, fail
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.replicas import MAX_SOURCES
from planaria_coordinator.domain.recovery.copy_layers import seconds_for_layers
from planaria_coordinator.domain.recovery.transition import Phase


def final_digest(layer_digests: Mapping[int, str]) -> str:
    """Return the SHA-256 over the layers' SHA-256 digests in layer order, hexadecimal."""
    combined = hashlib.sha256()
    for layer in sorted(layer_digests):
        combined.update(bytes.fromhex(layer_digests[layer]))
    return combined.hexdigest()


def begin_digesting(turn: Turn) -> None:
    """Every replica digests every layer it holds: that they agree is worth knowing."""
    transition = turn.transition
    turn.enter(Phase.DIGESTING, f"all {turn.run.requirements.steps} steps are committed")
    turn.account(Activity.FINISHING)
    turn.set_state(JobState.RUNNING)
    for engine_id, layers in sorted(transition.holdings.items()):
        if layers:
            turn.send(
                turn.run.engines[engine_id],
                DigestLayers(layers=layers),
                allow_seconds=seconds_for_layers(turn, layers),
            )


def on_digested(turn: Turn, pending: Pending, outcome: Digested) -> None:
    """An engine has digested its layers; when all have, the model is known."""
    transition = turn.transition
    if outcome.version != transition.target_steps:
        turn.silent_engines[pending.engine_id] = (
            f"it digested version {outcome.version} instead of {transition.target_steps}"
        )
        return
    turn.note(digests={**transition.digests, pending.engine_id: dict(outcome.digests)})
    if turn.is_awaiting("digest_layers"):
        return
    by_layer = _agreed_digests(turn)
    if by_layer is None:
        return
    turn.change(final_digest=final_digest(by_layer))
    if turn.run.requirements.steps in turn.run.checkpoints:
        turn.enter(Phase.CHECKPOINTING, "the last checkpoint is being written")
    else:
        _write_output(turn)


def end_when_checkpointed(turn: Turn) -> None:
    """Write the output as soon as the last checkpoint is complete, or given up."""
    transition = turn.run.transition
    if transition is None or transition.phase is not Phase.CHECKPOINTING:
        return
    if turn.run.requirements.steps not in turn.run.checkpoints:
        _write_output(turn)


def _write_output(turn: Turn) -> None:
    if turn.run.requirements.output_path:
        _begin_export(turn)
    else:
        end(turn, JobState.SUCCEEDED)


def _agreed_digests(turn: Turn) -> dict[int, str] | None:
    by_layer: dict[int, str] = {}
    differing: set[int] = set()
    for _, digests in sorted(turn.transition.digests.items()):
        for layer, digest in digests.items():
            if by_layer.setdefault(layer, digest) != digest:
                differing.add(layer)
    absent = set(range(turn.run.requirements.num_layers)) - by_layer.keys()
    if absent:
        turn.retry_reason = f"no engine digested layers {_listed(absent)}"
        return None
    if differing:
        message = f"replicas of layers {_listed(differing)} differ at the end"
        if turn.run.requirements.reproducible:
            fail(turn, ErrorReason.INTERNAL, message, {"layers": _listed(differing)})
            return None
        turn.emit("replicas_differ", message, layers=sorted(differing))
    return by_layer


def _listed(layers: set[int]) -> str:
    return ",".join(str(layer) for layer in sorted(layers))


def _begin_export(turn: Turn) -> None:
    run, transition = turn.run, turn.transition
    holdings = transition.holdings
    writers = sorted(holdings, key=lambda engine_id: (-len(holdings[engine_id]), engine_id))
    num_tries = transition.history.num_attempts + (run.setback.num_tries if run.setback else 0)
    writer = writers[num_tries % len(writers)]
    layers = tuple(
        LayerSource(
            layer=layer,
            addresses=()
            if layer in holdings[writer]
            else tuple(
                run.engines[holder].data_address
                for holder in sorted(holdings)
                if layer in holdings[holder]
            )[:MAX_SOURCES],
        )
        for layer in range(run.requirements.num_layers)
    )
    requirements = run.requirements
    turn.enter(Phase.EXPORTING, f"{writer} writes {requirements.output_path}")
    turn.send(
        run.engines[writer],
        Export(path=requirements.output_path, format=requirements.output_format, layers=layers),
        # Writing includes fetching, and shared disks are slow.
        allow_seconds=turn.limits.prepare_seconds
        + 2 * seconds_for_layers(turn, tuple(range(requirements.num_layers))),
    )


def on_exported(turn: Turn, outcome: Exported) -> None:
    """The model is written: the job is done."""
    turn.emit(
        "output_written",
        f"{bytes_in_words(outcome.num_bytes)} written to {outcome.path}",
        path=outcome.path,
        bytes=outcome.num_bytes,
    )
    end(turn, JobState.SUCCEEDED)


def export_failed(turn: Turn, failure: Failure) -> None:
    """Try again: a source may have died, a disk that is full may have room by then.

    What the model or the job file does not allow fails on every node.
    """
    if failure.reason is ErrorReason.INVALID_ARGUMENT:
        fail(turn, failure.reason, failure.message, failure.metadata)
    else:
        turn.retry_reason = f"the output could not be written: {failure.message}"
