"""Checkpoints, in any phase of a job: collect what engines write, fill gaps, seal, give up.

The states of a version, and what happens when anybody fails, are in protocol/checkpoints.md.
Nothing here holds up training, and no engine is lost for being slow with a file.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from planaria_common.checkpoints import is_due
from planaria_common.errors import ErrorReason
from planaria_common.words import bytes_in_words
from planaria_coordinator.domain.checkpoint.checkpoint import Checkpoint, version_of
from planaria_coordinator.domain.engines.directive import (
    DiscardCheckpoint,
    LayerWritten,
    SealCheckpoint,
    WriteCheckpoint,
)
from planaria_coordinator.domain.engines.engine import Engine, Pending
from planaria_coordinator.domain.engines.outcome import CheckpointSealed, CheckpointTaken, Failure
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.signals import CheckpointReported
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.replicas import holdings_of_placement
from planaria_coordinator.domain.recovery.copy_layers import seconds_for_layers
from planaria_coordinator.domain.recovery.transition import Phase

_WORTH_ANOTHER_ENGINE = (
    ErrorReason.STALE_GENERATION,
    ErrorReason.ENGINE_FAILED,
    ErrorReason.UNAVAILABLE,
)


def reported(turn: Turn, signal: CheckpointReported) -> None:
    """Note an engine's report; when all layers are written, one engine seals them."""
    if turn.run.restored_generation and signal.engine_id not in turn.run.engines:
        return  # it may be of what the job has gone back behind
    _note_lateness(turn, signal.engine_id, signal.report)
    if isinstance(signal.report, LayerWritten):
        _wait_behind(turn, signal.engine_id)
    checkpoint = _open(turn, signal.version)
    if checkpoint is None or checkpoint.sealer:
        return
    match signal.report:
        case CheckpointTaken(layers=layers):
            _note_taken(turn, checkpoint, signal.engine_id, layers)
        case LayerWritten() as written:
            _note_written(turn, checkpoint, written)
        case Failure(reason=ErrorReason.UNAVAILABLE, message=message):
            _take_back(turn, checkpoint, signal.engine_id, message)
        case Failure(message=message):
            _give_up(turn, checkpoint, message, failed=True)


def sealed_at_the_end(turn: Turn, outcome: CheckpointSealed) -> None:
    """Note a checkpoint that was sealed after the job had ended."""
    version = version_of(outcome.path)
    if version in turn.run.checkpoints:
        sealed(turn, version, outcome)


def sealed(turn: Turn, version: int, outcome: CheckpointSealed) -> None:
    """A checkpoint is complete; older ones that are not have lost their worth."""
    turn.change(
        checkpoints={v: c for v, c in turn.run.checkpoints.items() if v > version},
        checkpoint_floor=max(turn.run.checkpoint_floor, version),
    )
    if version > turn.run.newest_checkpoint_steps:
        turn.change(newest_checkpoint=outcome.path, newest_checkpoint_steps=version)
    turn.emit(
        "checkpoint_written",
        f"the checkpoint of step {version} is complete: {outcome.path}, "
        f"{bytes_in_words(outcome.num_bytes)}",
        step=version,
        path=outcome.path,
        bytes=outcome.num_bytes,
        removed=list(outcome.removed),
    )


def write_failed(turn: Turn, pending: Pending, failure: Failure) -> None:
    """Note that an engine does not have these layers, or was fenced first."""
    checkpoint = turn.run.checkpoints.get(pending.version)
    if checkpoint is None:
        return
    if failure.reason is ErrorReason.STALE_GENERATION and turn.run.transition is not None:
        _put(turn, checkpoint.without_writer(pending.engine_id))  # the next fence says who can
    elif failure.reason is ErrorReason.UNAVAILABLE:
        _note_lateness(turn, pending.engine_id, failure)
        _take_back(turn, checkpoint, pending.engine_id, failure.message)
    else:
        reasons = (*checkpoint.given_back.values(), failure.message)
        _give_up(turn, checkpoint, "; ".join(reasons), failed=bool(checkpoint.given_back))


def seal_failed(turn: Turn, pending: Pending, failure: Failure) -> None:
    """Ask another engine, unless what is on the disk is at fault."""
    checkpoint = turn.run.checkpoints.get(pending.version)
    if checkpoint is None:
        return
    if failure.reason in _WORTH_ANOTHER_ENGINE:
        _seal_again(turn, checkpoint, failure.message)
    else:
        _give_up(turn, checkpoint, failure.message, failed=True)


def fill_gaps(turn: Turn) -> None:
    """Every survivor has reported: layers without a writer get another one, or none.

    Survivors that stand at the version still have it; the copies are made before engines learn
    how the step in flight goes on.
    """
    target = turn.run.requirements.trained_steps(turn.transition.target_steps)
    if _is_due(turn.run, target):
        _open(turn, target)
    for version in sorted(turn.run.checkpoints):
        checkpoint = turn.run.checkpoints[version]
        missing = checkpoint.missing(turn.run.requirements.num_layers, turn.run.engines.keys())
        if not missing:
            if checkpoint.sealer and checkpoint.sealer not in turn.run.engines:
                _seal_again(turn, checkpoint, f"{checkpoint.sealer} is lost")
        elif version != target or not _hand_over(turn, checkpoint, missing):
            layers = ",".join(map(str, missing))
            lost = f"the engines that were to write layers {layers} of step {version} are lost"
            late = "; ".join(checkpoint.given_back.values())
            _give_up(turn, checkpoint, late or lost, failed=bool(late))


def give_up_what_is_lost(turn: Turn) -> None:
    """Between transitions: a writer that left without a fence takes its layers with it."""
    run = turn.run
    if run.transition is not None:
        return
    for checkpoint in tuple(run.checkpoints.values()):
        gone = {e for layer, e in checkpoint.writers.items() if layer not in checkpoint.written}
        gone -= run.engines.keys()
        if checkpoint.sealer:
            # Who was sealing when the job ended may be done, and says so before it stops.
            present = run.stopping if run.state.is_terminal else run.engines
            if checkpoint.sealer not in present:
                _seal_again(turn, checkpoint, f"{checkpoint.sealer} is gone")
        elif gone:
            _give_up(turn, checkpoint, f"{min(gone)} is gone, and had not written its layers")


def overdue(turn: Turn) -> None:
    """Give up versions of which nothing more was written for too long."""
    for checkpoint in tuple(turn.run.checkpoints.values()):
        if not checkpoint.sealer and checkpoint.deadline_seconds <= turn.now.seconds:
            num_written, num_layers = len(checkpoint.written), turn.run.requirements.num_layers
            message = f"{num_written} of {num_layers} layers of step {checkpoint.version} came"
            _give_up(turn, checkpoint, f"{message} within the deadline")


def directive_overdue(turn: Turn, pending: Pending) -> None:
    """A file may take long: the engine is not to blame."""
    turn.drop([pending.directive_id])
    checkpoint = turn.run.checkpoints.get(pending.version)
    if pending.kind == "seal_checkpoint" and checkpoint is not None:
        _seal_again(turn, checkpoint, f"{pending.engine_id} did not seal it in time")


def shift_deadlines(turn: Turn, seconds: float) -> None:
    """The coordinator itself was blocked."""
    shifted = {
        version: replace(checkpoint, deadline_seconds=checkpoint.deadline_seconds + seconds)
        for version, checkpoint in turn.run.checkpoints.items()
    }
    turn.note_run(checkpoints=shifted)


def restart_deadlines(turn: Turn) -> None:
    """Count from now on: the coordinator has started again, with another clock."""
    restarted = {
        version: replace(checkpoint, deadline_seconds=_deadline(turn))
        for version, checkpoint in turn.run.checkpoints.items()
    }
    turn.note_run(checkpoints=restarted)


# -- inside ----------------------------------------------------------------------------------------


def _is_due(run: JobRun, version: int) -> bool:
    requirements = run.requirements
    return bool(requirements.checkpoint_path) and is_due(
        version, every_steps=requirements.checkpoint_every_steps, num_steps=requirements.steps
    )


def _open(turn: Turn, version: int) -> Checkpoint | None:
    """The version's checkpoint, begun if it is new; None when it is over."""
    run = turn.run
    if version in run.checkpoints:
        return run.checkpoints[version]
    if not _is_due(run, version) or version <= max(run.checkpoint_floor, run.initial_steps):
        return None
    checkpoint = Checkpoint(version=version, deadline_seconds=_deadline(turn))
    _put(turn, checkpoint)
    return checkpoint


def _put(turn: Turn, checkpoint: Checkpoint) -> None:
    turn.change(checkpoints={**turn.run.checkpoints, checkpoint.version: checkpoint})


def _deadline(turn: Turn) -> float:
    return turn.now.seconds + _allowed_seconds(turn)


def _allowed_seconds(turn: Turn) -> float:
    """Shared disks are slow, a seal reads all that was written, and engines speak first."""
    requirements = turn.run.requirements
    all_layers = tuple(range(requirements.num_layers))
    return requirements.checkpoint_deadline_seconds + 2 * seconds_for_layers(turn, all_layers)


def _note_writers(
    turn: Turn, checkpoint: Checkpoint, engine_id: str, layers: Iterable[int]
) -> None:
    writers = {**checkpoint.writers, **dict.fromkeys(layers, engine_id)}
    _put(turn, replace(checkpoint, writers=writers))


def _note_taken(turn: Turn, checkpoint: Checkpoint, engine_id: str, layers: Iterable[int]) -> None:
    """An engine has copies; said again, it counts no more where another writes by now."""
    engines = turn.run.engines
    if engine_id not in engines or engine_id in checkpoint.given_back:
        return
    free = [layer for layer in layers if checkpoint.writers.get(layer) not in engines]
    _note_writers(turn, checkpoint, engine_id, free)


def _note_lateness(
    turn: Turn, engine_id: str, report: CheckpointTaken | LayerWritten | Failure
) -> None:
    """Know whose disk hangs: nothing of a checkpoint is asked of such an engine."""
    run = turn.run
    is_late = engine_id in run.late_writers
    others = tuple(e for e in run.late_writers if e in run.engines and e != engine_id)
    match report:
        case LayerWritten() if is_late:
            turn.change(late_writers=others)
        case Failure(reason=ErrorReason.UNAVAILABLE, message=message) if not is_late:
            turn.change(late_writers=(*others, engine_id))
            turn.emit(
                "checkpoint_writer_late",
                f"replicas write the layers of {engine_id} to checkpoints, where they have them: "
                f"{message}",
                engine_id=engine_id,
                path=run.requirements.checkpoint_path,
            )
        case _:
            pass


def _take_back(turn: Turn, checkpoint: Checkpoint, engine_id: str, message: str) -> None:
    """Give what an engine does not write to others that have it; a fence says who they are."""
    layers = checkpoint.layers_of(engine_id)
    given_back = {**checkpoint.given_back, engine_id: message}
    checkpoint = replace(checkpoint.without_writer(engine_id), given_back=given_back)
    _put(turn, checkpoint)
    is_fenced = turn.run.transition is not None and turn.is_awaiting("quiesce")
    if not layers or (is_fenced and not turn.run.trains):
        return
    if not _hand_over(turn, checkpoint, layers):
        _give_up(turn, checkpoint, message, failed=True)


def _wait_behind(turn: Turn, engine_id: str) -> None:
    """An engine gets on with its files, and what waits behind them has its time from now on."""
    for checkpoint in tuple(turn.run.checkpoints.values()):
        if checkpoint.layers_of(engine_id):
            _put(turn, replace(checkpoint, deadline_seconds=_deadline(turn)))


def _note_written(turn: Turn, checkpoint: Checkpoint, written: LayerWritten) -> None:
    checkpoint = replace(
        checkpoint,
        written={**checkpoint.written, written.layer: written},
        deadline_seconds=_deadline(turn),
    )
    _put(turn, checkpoint)
    if checkpoint.is_written(turn.run.requirements.num_layers):
        _seal(turn, checkpoint)


def _seal(turn: Turn, checkpoint: Checkpoint) -> None:
    engine = _some_engine(turn.run, checkpoint.version + checkpoint.num_seals)
    if engine is None:
        _give_up(turn, checkpoint, "no engine is left to seal it")
        return
    num_seals = checkpoint.num_seals + 1
    _put(turn, replace(checkpoint, sealer=engine.id, num_seals=num_seals))
    turn.because(f"{engine.id} seals the checkpoint of step {checkpoint.version}")
    turn.send(
        engine,
        SealCheckpoint(
            version=checkpoint.version,
            layers=tuple(checkpoint.written[layer] for layer in sorted(checkpoint.written)),
        ),
        allow_seconds=_allowed_seconds(turn),
        generation=_generation(turn.run, engine.id) if num_seals == 1 else None,
        version=checkpoint.version,
    )


def _seal_again(turn: Turn, checkpoint: Checkpoint, reason: str) -> None:
    if checkpoint.num_seals >= turn.limits.num_attempts:
        _give_up(turn, checkpoint, reason, failed=True)
    else:
        turn.because(reason)
        _seal(turn, checkpoint)


def _generation(run: JobRun, engine_id: str) -> int:
    """The one that an engine acts for: one that it has not received is not its own yet."""
    transition = run.transition
    untold = transition is None or transition.phase is Phase.PREPARING or transition.plans_online
    if transition is not None and transition.phase is Phase.STAGING:
        untold = transition.target is None or engine_id not in transition.target.engine_ids
    return run.placement.generation if untold and run.placement else run.generation


def _some_engine(run: JobRun, turn_number: int) -> Engine | None:
    """One of those whose loss would be noticed, another one each time."""
    placed = run.placement.engine_ids if run.placement else frozenset()
    transition = run.transition
    if transition is not None and transition.phase in (Phase.STAGING, Phase.SWITCHING):
        # Those who have no place in the next plan may not have heard of its generation.
        placed &= transition.target.engine_ids if transition.target else frozenset()
    placed = (placed - set(run.late_writers)) or placed
    engines = [run.engines[e] for e in sorted(placed) if e in run.engines]
    return engines[turn_number % len(engines)] if engines else None


def _hand_over(turn: Turn, checkpoint: Checkpoint, missing: tuple[int, ...]) -> bool:
    """Give layers to engines that hold them; return whether there are any for all."""
    parts: dict[str, list[int]] = {}
    unfit = {*checkpoint.given_back, *turn.run.late_writers}
    holdings = _holdings(turn, checkpoint.version)
    for layer in missing:
        holders = sorted(e for e, held in holdings.items() if layer in held and e not in unfit)
        if not holders:
            return False
        writer = min(holders, key=lambda engine_id: len(parts.get(engine_id, ())))
        parts.setdefault(writer, []).append(layer)
    _put(turn, replace(checkpoint, deadline_seconds=_deadline(turn)))
    for engine_id, layers in sorted(parts.items()):
        _note_writers(turn, turn.run.checkpoints[checkpoint.version], engine_id, layers)
        turn.because(f"{engine_id} writes layers {layers} of step {checkpoint.version}")
        turn.send(
            turn.run.engines[engine_id],
            WriteCheckpoint(version=checkpoint.version, layers=tuple(layers)),
            allow_seconds=_allowed_seconds(turn),
            generation=_generation(turn.run, engine_id),
            version=checkpoint.version,
        )
    return True


def _holdings(turn: Turn, version: int) -> Mapping[str, Collection[int]]:
    """By engine: the layers that it holds in a version, as far as is known."""
    run, transition = turn.run, turn.run.transition
    trained_steps = run.requirements.trained_steps
    if transition is not None and transition.holdings:
        return transition.holdings if trained_steps(transition.target_steps) == version else {}
    if run.placement is None or not run.trains or trained_steps(run.committed_steps) > version:
        return {}
    return holdings_of_placement(run.placement, run.prepared_engines, run.requirements)


def _give_up(turn: Turn, checkpoint: Checkpoint, reason: str, *, failed: bool = False) -> None:
    """Drop a version: because somebody failed at it, or because its layers are gone."""
    version = checkpoint.version
    turn.change(
        checkpoints={v: c for v, c in turn.run.checkpoints.items() if v != version},
        checkpoint_floor=max(turn.run.checkpoint_floor, version),
    )
    message = f"there is no checkpoint of step {version}: {reason}"
    path = turn.run.requirements.checkpoint_path
    turn.emit(
        "checkpoint_failed" if failed else "checkpoint_incomplete",
        message,
        step=version,
        path=path,
    )
    turn.because(message)
    engine = _some_engine(turn.run, version)
    if engine is not None:
        turn.send(
            engine,
            DiscardCheckpoint(version=version),
            allow_seconds=_allowed_seconds(turn),
            generation=_generation(turn.run, engine.id),
            version=version,
        )
