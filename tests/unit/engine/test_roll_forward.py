"""Rolling forward: a witness's record is applied to the very sums it speaks of, or not at all."""

import pytest

from planaria_worker.engine.recovery.roll_forward import (
    RollForward,
    SumsKey,
    decide_roll_forward,
)
from planaria_worker.engine.step.commit_record import CommitRecord

RECORD = CommitRecord(step=6, generation=3, gradient_norm=1.5, loss=2.25, num_tokens=64)


@pytest.mark.parametrize(
    ("committed_steps", "kept", "expected"),
    [
        (7, None, RollForward.NOTHING),
        (6, SumsKey(step=6, generation=3), RollForward.APPLY),
        (6, SumsKey(step=6, generation=2), RollForward.STALE),
        (6, SumsKey(step=5, generation=3), RollForward.STALE),
        (6, None, RollForward.STALE),
    ],
)
def test_a_record_decides_how_to_roll_forward(
    committed_steps: int, kept: SumsKey | None, expected: RollForward
) -> None:
    assert decide_roll_forward(RECORD, committed_steps=committed_steps, kept=kept) is expected


def test_no_engine_is_two_steps_behind() -> None:
    with pytest.raises(ValueError, match="step 6 cannot follow 5 committed steps"):
        decide_roll_forward(RECORD, committed_steps=5, kept=None)


def test_a_record_survives_the_wire() -> None:
    assert CommitRecord.from_proto(RECORD.to_proto()) == RECORD
