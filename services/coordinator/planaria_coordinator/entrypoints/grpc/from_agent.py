"""What agents send: from the worker protocol's messages to the application's types."""

from types import MappingProxyType
from typing import get_args

from planaria.api.worker.v1 import report_pb2, worker_service_pb2
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.messages import from_message
from planaria_coordinator.application.agents.agent_messages import CheckpointReport, ProbeResult
from planaria_coordinator.domain.engines import outcome as outcomes
from planaria_coordinator.domain.engines.directive import LayerWritten
from planaria_coordinator.domain.engines.silence import Reach

_OUTCOMES = MappingProxyType(
    {each.__dataclass_fields__["kind"].default: each for each in get_args(outcomes.Outcome)}
)
_REACHES = MappingProxyType(
    {worker_service_pb2.Reach.Value(f"REACH_{reach}"): reach for reach in Reach}
)
_CHECKPOINT_REPORTS = MappingProxyType(
    {"taken": outcomes.CheckpointTaken, "written": LayerWritten, "failure": outcomes.Failure}
)


def checkpoint_report_of(message: report_pb2.CheckpointReport) -> CheckpointReport:
    """Return a report.

    Raises:
        PlanariaError: INVALID_ARGUMENT when it is empty.
    """
    case = message.WhichOneof("report")
    if case is None:
        raise _unset("checkpoint_report.report")
    return CheckpointReport(
        job_id=message.job_id,
        engine_id=message.engine_id,
        version=message.version,
        report=from_message(getattr(message, case), _CHECKPOINT_REPORTS[case]),
    )


def probe_result_of(message: worker_service_pb2.ProbeResult) -> ProbeResult:
    """Return the result of a probe; what a newer agent may say besides says nothing."""
    return ProbeResult(probe_id=message.probe_id, reach=_REACHES.get(message.reach))


def result_of(message: report_pb2.DirectiveResult) -> outcomes.DirectiveResult:
    """Return a result.

    Raises:
        PlanariaError: INVALID_ARGUMENT when it has no outcome.
    """
    return outcomes.DirectiveResult(
        directive_id=message.directive_id,
        job_id=message.job_id,
        outcome=_outcome_of(message),
    )


def _outcome_of(message: report_pb2.DirectiveResult) -> outcomes.Outcome:
    case = message.WhichOneof("outcome")
    if case is None:
        raise _unset("result.outcome")
    if case == "digested":  # a mapping inside, a list on the wire
        return outcomes.Digested(
            digests={layer.layer: layer.sha256.hex() for layer in message.digested.layers},
            version=message.digested.version,
        )
    outcome: outcomes.Outcome = from_message(getattr(message, case), _OUTCOMES[case])
    return outcome


def _unset(field: str) -> PlanariaError:
    return PlanariaError(
        ErrorReason.INVALID_ARGUMENT,
        f"{field} must be set",
        {"field": field, "expected": "set"},
    )
