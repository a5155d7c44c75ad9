"""The resources of the domain as protobuf messages."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from planaria.api.common.v1 import errors_pb2
from planaria.api.coordinator.v1 import resources_pb2
from planaria_coordinator.domain.engines.node import EngineSnapshot, Node
from planaria_coordinator.domain.job.event import Event
from planaria_coordinator.domain.job.job import Job, JobError, LogLine, StepMetrics
from planaria_coordinator.domain.recovery.recovery import Recovery


def timestamp(time: datetime | None) -> Timestamp | None:
    """Return a time as protobuf has it; None, which leaves a field unset, for None."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def struct(document: Mapping[str, Any]) -> Struct:
    """Return JSON values as protobuf has them."""
    message = Struct()
    message.update(document)
    return message


def from_struct(message: Struct) -> dict[str, Any]:
    """Return JSON values; whole numbers, which a Struct holds as floats, are ints again."""
    return {name: _json_value(value) for name, value in message.fields.items()}


def _json_value(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [_json_value(each) for each in value.list_value.values]
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case _:
            return None


def job_message(job: Job) -> resources_pb2.Job:
    return resources_pb2.Job(
        id=job.id,
        name=job.name,
        state=resources_pb2.JobState.Value(f"JOB_STATE_{job.state}"),
        step=job.step,
        steps=job.steps,
        loss=job.loss,
        evaluation_loss=job.evaluation_loss,
        evaluation_step=job.evaluation_step,
        generation=job.generation,
        tokens_per_second=job.tokens_per_second,
        goodput=job.goodput,
        final_digest=job.final_digest,
        error=_job_error(job.error),
        create_time=timestamp(job.create_time),
        start_time=timestamp(job.start_time),
        end_time=timestamp(job.end_time),
        spec=struct(job.spec),
        fault_tolerance=job.fault_tolerance,
        time_seconds=job.time_seconds,
        waiting_reason=job.waiting_reason,
    )


def _job_error(error: JobError | None) -> resources_pb2.JobError | None:
    if error is None:
        return None
    reason = errors_pb2.ErrorReason.Value(f"ERROR_REASON_{error.reason}")
    return resources_pb2.JobError(reason=reason, message=error.message)


def node_message(node: Node) -> resources_pb2.Node:
    return resources_pb2.Node(
        id=node.id,
        state=resources_pb2.NodeState.Value(f"NODE_STATE_{node.state}"),
        address=node.address,
        num_accelerators=node.num_accelerators,
        accelerator_kind=node.accelerator_kind,
        version=node.version,
        agent_pid=node.agent_pid,
        engines=[_engine(engine) for engine in node.engines],
        heartbeat_time=timestamp(node.heartbeat_time),
        join_time=timestamp(node.join_time),
    )


def _engine(engine: EngineSnapshot) -> resources_pb2.NodeEngine:
    return resources_pb2.NodeEngine(
        id=engine.engine_id,
        job_id=engine.job_id,
        accelerator=engine.accelerator,
        pid=engine.pid,
        state=engine.state,
    )


def event_message(event: Event) -> resources_pb2.Event:
    return resources_pb2.Event(
        sequence=event.sequence,
        time=timestamp(event.time),
        type=event.type,
        job_id=event.job_id,
        node_id=event.node_id,
        generation=event.generation,
        message=event.message,
        details=struct(event.details),
    )


def metrics_message(metrics: StepMetrics) -> resources_pb2.StepMetrics:
    return resources_pb2.StepMetrics(
        step=metrics.step,
        loss=metrics.loss,
        gradient_norm=metrics.gradient_norm,
        learning_rate=metrics.learning_rate,
        num_tokens=metrics.num_tokens,
        step_seconds=metrics.step_seconds,
        tokens_per_second=metrics.tokens_per_second,
        model_flops_utilization=metrics.model_flops_utilization,
        evaluation_loss=metrics.evaluation_loss,
        generation=metrics.generation,
        commit_time=timestamp(metrics.commit_time),
    )


def recovery_message(recovery: Recovery) -> resources_pb2.Recovery:
    return resources_pb2.Recovery(
        id=recovery.id,
        cause=recovery.cause,
        nodes_lost=recovery.nodes_lost,
        nodes_joined=recovery.nodes_joined,
        generation=recovery.generation,
        redone_microbatches=recovery.redone_microbatches,
        copied_bytes=recovery.copied_bytes,
        phases=[
            resources_pb2.RecoveryPhase(
                name=phase.name,
                start_time=timestamp(phase.start_time),
                duration_seconds=phase.duration_seconds,
            )
            for phase in recovery.phases
        ],
        detect_seconds=recovery.detect_seconds,
        fence_seconds=recovery.fence_seconds,
        resume_seconds=recovery.resume_seconds,
        regrow_seconds=recovery.regrow_seconds,
        idle_seconds=recovery.idle_seconds,
        lost_seconds=recovery.lost_seconds,
        lost_accelerator_seconds=recovery.lost_accelerator_seconds,
        start_time=timestamp(recovery.start_time),
        end_time=timestamp(recovery.end_time),
        pipeline_sizes_before=recovery.pipeline_sizes_before,
        pipeline_sizes_after=recovery.pipeline_sizes_after,
        reason=recovery.reason,
    )


def log_line_message(line: LogLine) -> resources_pb2.LogLine:
    return resources_pb2.LogLine(
        sequence=line.sequence,
        time=timestamp(line.time),
        engine_id=line.engine_id,
        text=line.text,
    )
