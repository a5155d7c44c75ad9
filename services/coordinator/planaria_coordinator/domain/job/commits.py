"""What the record of a commit tells of a job: its evaluation, and whether the step was skipped."""

from planaria_coordinator.domain.engines.directive import CommitRecord
from planaria_coordinator.domain.job.turn import Turn

MAX_KNOWN_SKIPS = 16
"""So many skipped steps are kept to recognise a report that is repeated."""


def note_commit(turn: Turn, record: CommitRecord) -> None:
    """Note what a record tells; several engines report each, and may report it again."""
    turn.run = turn.run.with_evaluation(record)
    known = turn.run.newest_skipped_steps
    is_old = len(known) == MAX_KNOWN_SKIPS and record.step < min(known)
    if not record.num_skipped or is_old or record.step in known:
        return
    turn.change(
        num_skipped_steps=turn.run.num_skipped_steps + 1,
        newest_skipped_steps=tuple(sorted((*known, record.step))[-MAX_KNOWN_SKIPS:]),
    )
    turn.emit(
        "step_skipped",
        f"step {record.step} was skipped, {record.num_skipped} in a row: a gradient of layer "
        f"{record.skipped_layer} or the loss is not finite or too large",
        step=record.step,
        layer=record.skipped_layer,
        skipped_in_a_row=record.num_skipped,
    )
