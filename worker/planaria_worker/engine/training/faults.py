"""Faults: what stopped the training thread, as it is reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.step.commit_messages import CommitMismatchError, DecisionKind
from planaria_worker.engine.step.training_step import RefusedStepError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why the engine cannot go on by itself."""

    reason: ErrorReason
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    is_fatal: bool
    """Whether every engine would fail in the same way again, so that the job must fail."""


def fault_of(error: Exception, step: int) -> Fault:
    """Classify an error that ended a step."""
    match error:
        case RefusedStepError():
            return _refused(error)
        case DataError():
            return Fault(reason=ErrorReason.DATA_UNUSABLE, message=str(error), is_fatal=True)
        case GroupBroken() | CommitMismatchError():
            # This engine is sound: the peers of the lost engine report it.
            return Fault(reason=ErrorReason.UNAVAILABLE, message=str(error), is_fatal=False)
        case PlanariaError():
            return Fault(
                reason=error.reason, message=str(error), metadata=error.metadata, is_fatal=False
            )
        case _:
            detail = f"{type(error).__name__}: {error}".partition("\n")[0]
            return Fault(
                reason=ErrorReason.ENGINE_FAILED,
                message=f"step {step}: {detail}",
                metadata={"step": str(step), "detail": detail},
                is_fatal=False,
            )


def _refused(error: RefusedStepError) -> Fault:
    metadata = {"layer": str(error.layer), "step": str(error.step)}
    where = f"step {error.step}, layer {error.layer}"
    match error.kind:
        case DecisionKind.OUT_OF_RANGE:
            reason = ErrorReason.GRADIENT_OUT_OF_RANGE
            message = (
                f"{where}: a gradient or the loss is not finite or too large, and no more steps "
                "in a row may be skipped (training.max_skipped_steps); "
                "a lower training.optimizer.learning_rate may help"
            )
        case DecisionKind.DIVERGED:
            reason = ErrorReason.INTERNAL
            message = f"{where}: replicas have different gradient sums; suspect a node's memory"
        case _:
            reason = ErrorReason.INTERNAL
            what = "a gradient sum or an evaluation"
            message = f"{where}: a microbatch is missing in {what}, or is in it twice"
    return Fault(reason=reason, message=message, metadata=metadata, is_fatal=True)
