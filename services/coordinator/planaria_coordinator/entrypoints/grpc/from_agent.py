"""What agents send: from the worker protocol's messages to the application's words."""

from collections.abc import Iterable
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from planaria.api.common.v1 import errors_pb2
from planaria.api.worker.v1 import report_pb2, worker_service_pb2
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.agents.agent_messages import (
    CheckpointReport,
    EngineExited,
    EngineFault,
    Hello,
    LogLines,
    PeerLost,
    StepReport,
)
from planaria_coordinator.domain.engines import outcome as words
from planaria_coordinator.domain.engines.directive import CommitRecord, InitialState, LayerWritten
from planaria_coordinator.domain.engines.node import EngineSnapshot, EngineState


def time_of(message: Timestamp) -> datetime:
    """Return a protobuf time, in UTC."""
    return message.ToDatetime(tzinfo=UTC)


def hello_of(message: worker_service_pb2.Hello) -> Hello:
    return Hello(
        node_id=message.node_id,
        agent_id=message.agent_id,
        version=message.version,
        protocol_version=message.protocol_version,
        advertise_address=message.advertise_address,
        num_accelerators=message.num_accelerators,
        accelerator_kind=message.accelerator_kind,
        accelerator_memory_bytes=message.accelerator_memory_bytes,
        pid=message.pid,
        engines=tuple(snapshot_of(engine) for engine in message.engines),
    )


def snapshot_of(message: report_pb2.EngineSnapshot) -> EngineSnapshot:
    name = report_pb2.EngineState.Name(message.state).removeprefix("ENGINE_STATE_")
    state = EngineState.STARTING if name == "UNSPECIFIED" else EngineState(name)
    return EngineSnapshot(
        engine_id=message.engine_id,
        job_id=message.job_id,
        accelerator=message.accelerator,
        generation=message.generation,
        state=state,
        committed_steps=message.committed_steps,
        progress=message.progress,
        pid=message.pid,
        data_address=message.data_address,
        store_address=message.store_address,
    )


def exited_of(message: report_pb2.EngineExited) -> EngineExited:
    return EngineExited(
        job_id=message.job_id,
        engine_id=message.engine_id,
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        detect_time=time_of(message.detect_time),
        log_tail=tuple(map(_storable, message.log_tail)),
    )


def peer_lost_of(message: report_pb2.PeerLost) -> PeerLost:
    return PeerLost(
        job_id=message.job_id,
        engine_id=message.engine_id,
        lost_engine_id=message.lost_engine_id,
        detect_time=time_of(message.detect_time),
    )


def fault_of(message: report_pb2.EngineFault) -> EngineFault:
    return EngineFault(
        job_id=message.job_id,
        engine_id=message.engine_id,
        generation=message.generation,
        failure=failure_of(message.failure),
        fatal=message.fatal,
        detect_time=time_of(message.detect_time),
    )


def step_report_of(message: report_pb2.StepReport) -> StepReport:
    return StepReport(
        job_id=message.job_id,
        engine_id=message.engine_id,
        record=record_of(message.record),
        learning_rate=message.learning_rate,
        step_seconds=message.step_seconds,
        seconds=dict(message.seconds),
        commit_time=time_of(message.commit_time),
    )


def checkpoint_report_of(message: report_pb2.CheckpointReport) -> CheckpointReport:
    """Return a report.

    Raises:
        PlanariaError: INVALID_ARGUMENT when it says nothing.
    """
    report: words.CheckpointTaken | LayerWritten | words.Failure
    match message.WhichOneof("report"):
        case "taken":
            report = words.CheckpointTaken(layers=tuple(message.taken.layers))
        case "written":
            report = LayerWritten(
                layer=message.written.layer,
                num_bytes=message.written.bytes,
                sha256=message.written.sha256.hex(),
            )
        case "failure":
            report = failure_of(message.failure)
        case _:
            raise _unset("checkpoint_report.report")
    return CheckpointReport(
        job_id=message.job_id,
        engine_id=message.engine_id,
        version=message.version,
        report=report,
    )


def _unset(field: str) -> PlanariaError:
    return PlanariaError(
        ErrorReason.INVALID_ARGUMENT,
        f"{field} must be set",
        {"field": field, "expected": "set"},
    )


def initial_state_of(message: report_pb2.InitialState) -> InitialState:
    return InitialState(
        path=message.path,
        step=message.step,
        sha256=message.sha256.hex(),
        num_tokens=message.num_tokens,
    )


def log_lines_of(message: worker_service_pb2.LogLines) -> LogLines:
    return LogLines(
        job_id=message.job_id,
        engine_id=message.engine_id,
        lines=tuple(message.lines),
        read_time=time_of(message.read_time),
    )


def record_of(message: report_pb2.CommitRecord) -> CommitRecord:
    return CommitRecord(
        step=message.step,
        generation=message.generation,
        gradient_norm=message.gradient_norm,
        loss=message.loss,
        num_tokens=message.num_tokens,
        next_generation=message.next_generation,
        evaluation_loss=message.evaluation_loss if message.HasField("evaluation_loss") else None,
    )


def failure_of(message: report_pb2.Failure) -> words.Failure:
    name = errors_pb2.ErrorReason.Name(message.reason).removeprefix("ERROR_REASON_")
    reason = ErrorReason.INTERNAL if name == "UNSPECIFIED" else ErrorReason(name)
    metadata = {key: _storable(value) for key, value in message.metadata.items()}
    return words.Failure(reason=reason, message=_storable(message.message), metadata=metadata)


def _storable(text: str) -> str:
    """PostgreSQL's text cannot hold NUL, and what a user's code raises or prints may."""
    return text.replace("\0", "�")


def result_of(message: report_pb2.DirectiveResult) -> words.DirectiveResult:
    """Return a result.

    Raises:
        PlanariaError: INVALID_ARGUMENT when it has no outcome.
    """
    return words.DirectiveResult(
        directive_id=message.directive_id,
        job_id=message.job_id,
        engine_id=message.engine_id,
        generation=message.generation,
        outcome=_outcome_of(message),
    )


def _outcome_of(message: report_pb2.DirectiveResult) -> words.Outcome:
    match message.WhichOneof("outcome"):
        case "prepared":
            return _prepared_of(message.prepared)
        case "fence_report":
            return _fence_report_of(message.fence_report)
        case "committed":
            return words.Committed(
                committed_steps=message.committed.committed_steps,
                stale_layers=tuple(message.committed.stale_layers),
            )
        case "copied":
            return words.Copied(
                num_bytes=message.copied.bytes,
                layers=_held_of(message.copied.layers),
                start_time=time_of(message.copied.start_time),
                end_time=time_of(message.copied.end_time),
            )
        case "activated":
            return words.Activated(
                rebuild_start_time=time_of(message.activated.rebuild_start_time),
                resume_time=time_of(message.activated.resume_time),
                num_communicators=message.activated.num_communicators,
                committed_steps=message.activated.committed_steps,
            )
        case "staged":
            return _staged_of(message.staged)
        case "digested":
            return words.Digested(
                digests={layer.layer: layer.sha256.hex() for layer in message.digested.layers},
                version=message.digested.version,
            )
        case "exported":
            return words.Exported(path=message.exported.path, num_bytes=message.exported.bytes)
        case "checkpoint_taken":
            return words.CheckpointTaken(layers=tuple(message.checkpoint_taken.layers))
        case "checkpoint_sealed":
            return words.CheckpointSealed(
                path=message.checkpoint_sealed.path,
                num_bytes=message.checkpoint_sealed.bytes,
                removed=tuple(message.checkpoint_sealed.removed),
            )
        case "checkpoint_discarded":
            return words.CheckpointDiscarded()
        case "stopped":
            return words.Stopped()
        case "failure":
            return failure_of(message.failure)
        case _:
            raise _unset("result.outcome")


def _prepared_of(message: report_pb2.Prepared) -> words.Prepared:
    return words.Prepared(
        engine=snapshot_of(message.engine),
        data_digest=message.data_digest,
        num_tokens=message.num_tokens,
        fingerprint=dict(message.fingerprint),
        initial_state=initial_state_of(message.initial_state)
        if message.HasField("initial_state")
        else None,
        measured_layers=tuple(
            words.MeasuredLayer(
                layer=measured.layer,
                forward_seconds=measured.forward_seconds,
                backward_seconds=measured.backward_seconds,
                parameter_bytes=measured.parameter_bytes,
                state_bytes=measured.state_bytes,
                activation_bytes=measured.activation_bytes,
                output_bytes=measured.output_bytes,
                forward_flops=measured.forward_flops,
            )
            for measured in message.measured_layers
        ),
        model_digest=message.model_digest,
        peak_flops_per_second=message.peak_flops_per_second,
        ties_embeddings=message.ties_embeddings,
    )


def _staged_of(message: report_pb2.Staged) -> words.Staged:
    copied = message.HasField("copy_end_time")
    return words.Staged(
        num_bytes=message.bytes,
        start_time=time_of(message.start_time),
        rebuild_end_time=time_of(message.rebuild_end_time),
        copy_end_time=time_of(message.copy_end_time) if copied else None,
        num_communicators=message.num_communicators,
    )


def _fence_report_of(message: report_pb2.FenceReport) -> words.FenceReport:
    has_commit = message.HasField("last_commit")
    return words.FenceReport(
        committed_steps=message.committed_steps,
        last_commit=record_of(message.last_commit) if has_commit else None,
        layers=_held_of(message.layers),
        finished_microbatches=tuple(message.finished_microbatches),
        step_compute_seconds=message.step_compute_seconds,
        fence_time=time_of(message.fence_time),
        park_time=time_of(message.park_time) if message.HasField("park_time") else None,
        applied_generation=message.applied_generation,
        kept_microbatches=tuple(message.kept_microbatches),
        idle_groups=tuple(
            words.IdleGroup(id=each.id, size=each.size) for each in message.idle_groups
        ),
        microbatch_seconds=message.microbatch_seconds,
        compute_end_time=time_of(message.compute_end_time)
        if message.HasField("compute_end_time")
        else None,
    )


def _held_of(layers: Iterable[report_pb2.HeldLayer]) -> tuple[words.HeldLayer, ...]:
    return tuple(words.HeldLayer(layer=held.layer, version=held.version) for held in layers)
