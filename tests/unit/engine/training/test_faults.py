"""Whose fault it is: everybody's, the peers', or this engine's alone."""

import pytest

from planaria_common.errors import ErrorReason
from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.step.commit_messages import CommitMismatchError, DecisionKind
from planaria_worker.engine.step.training_step import RefusedStepError
from planaria_worker.engine.training.faults import fault_of


@pytest.mark.parametrize(
    ("error", "reason", "is_fatal"),
    [
        (
            RefusedStepError(DecisionKind.OUT_OF_RANGE, 3, 7),
            ErrorReason.GRADIENT_OUT_OF_RANGE,
            True,
        ),
        (RefusedStepError(DecisionKind.DIVERGED, 3, 7), ErrorReason.INTERNAL, True),
        (RefusedStepError(DecisionKind.INCOMPLETE, 3, 7), ErrorReason.INTERNAL, True),
        (DataError("data.path: no file"), ErrorReason.DATA_UNUSABLE, True),
        (GroupBroken("lost"), ErrorReason.UNAVAILABLE, False),
        (CommitMismatchError("other step"), ErrorReason.UNAVAILABLE, False),
        (MemoryError("no memory"), ErrorReason.ENGINE_FAILED, False),
    ],
)
def test_errors_are_classified(error: Exception, reason: ErrorReason, is_fatal: bool) -> None:
    fault = fault_of(error, step=7)
    assert (fault.reason, fault.is_fatal) == (reason, is_fatal)
    assert "\n" not in fault.message


def test_a_refused_step_names_the_layer() -> None:
    fault = fault_of(RefusedStepError(DecisionKind.OUT_OF_RANGE, 3, 7), step=7)
    assert fault.metadata == {"layer": "3", "step": "7"}
    assert "step 7, layer 3" in fault.message


def test_only_the_first_line_of_an_unexpected_error_is_reported() -> None:
    fault = fault_of(RuntimeError("first\nC++ stack"), step=7)
    assert fault.message == "step 7: RuntimeError: first"
