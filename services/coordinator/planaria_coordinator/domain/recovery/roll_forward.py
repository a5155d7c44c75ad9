"""Roll late engines forward: they apply the step that some engines committed, from its record."""

from planaria_coordinator.domain.engines.directive import CommitRecord, RollForward
from planaria_coordinator.domain.engines.engine import Pending
from planaria_coordinator.domain.engines.outcome import RolledForward
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.replicas import (
    holdings_of_placement,
    layers_of_version,
    placement_of,
    witness_record,
)
from planaria_coordinator.domain.recovery.transition import Phase
from planaria_coordinator.domain.recovery.version_reached import version_reached


def roll_forward(turn: Turn, record: CommitRecord, late: tuple[str, ...]) -> None:
    """Have late engines apply a witness's record."""
    turn.enter(
        Phase.ROLLING_FORWARD, f"{len(late)} engines apply step {record.step} from its record"
    )
    turn.emit(
        "step_rolled_forward",
        f"step {record.step} was committed by some engines: {len(late)} others apply it now",
        step=record.step,
        engines=len(late),
    )
    for engine_id in late:
        turn.send(
            turn.run.engines[engine_id],
            RollForward(record=record),
            allow_seconds=turn.limits.directive_seconds,
        )


def on_rolled_forward(turn: Turn, pending: Pending, outcome: RolledForward | None) -> None:
    """An engine applied the step, but for stale layers; None: it could not at all."""
    transition = turn.transition
    if outcome is not None and outcome.committed_steps == transition.target_steps:
        fresh = _rolled_forward(turn, pending.engine_id, outcome)
        turn.note(holdings={**transition.holdings, pending.engine_id: fresh})
    if not turn.is_awaiting("roll_forward"):
        version_reached(turn)


def _rolled_forward(turn: Turn, engine_id: str, outcome: RolledForward) -> tuple[int, ...]:
    """Return its layers of version T*: of those it had, the ones that it has summed.

    Layers left from an older assignment have no sums, and are of no use any more.
    """
    run, transition = turn.run, turn.transition
    placement = placement_of(
        witness_record(transition.reports, transition.target_steps), run.placements
    )
    summed: tuple[int, ...] = ()
    if placement is not None:
        placed = holdings_of_placement(placement, (engine_id,), run.requirements)
        summed = placed.get(engine_id, ())
    held = layers_of_version(transition.reports[engine_id].layers, transition.target_steps - 1)
    return tuple(k for k in held if k in summed and k not in outcome.stale_layers)
