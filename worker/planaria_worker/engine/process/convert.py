"""Between protobuf and what the engine's parts understand; nothing else here."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from planaria.api.common.v1 import errors_pb2
from planaria.api.worker.v1 import directive_pb2, report_pb2
from planaria_common.errors import ErrorReason
from planaria_worker.engine.groups.link_failure import LinkFailure
from planaria_worker.engine.layers.checkpoint.manifest import LayerEntry
from planaria_worker.engine.layers.initial_state import InitialStateFacts
from planaria_worker.engine.layers.layer_tasks import WantedLayers
from planaria_worker.engine.plan.plan import FollowerAssignment, PipelineAssignment, StageAssignment
from planaria_worker.engine.recovery.plan_request import Activated, PlanRequest
from planaria_worker.engine.recovery.staging import Staged
from planaria_worker.engine.training.faults import Fault
from planaria_worker.engine.training.step_reports import StepDone


def timestamp(time: datetime) -> Timestamp:
    result = Timestamp()
    result.FromDatetime(time)
    return result


def failure(reason: ErrorReason, message: str, metadata: Mapping[str, str]) -> report_pb2.Failure:
    return report_pb2.Failure(
        reason=errors_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}"),
        message=message,
        metadata=dict(metadata),
    )


def plan_to_activate(generation: int, activate: directive_pb2.Activate) -> PlanRequest:
    return replace(
        _plan_request(generation, activate),
        committed_steps=activate.committed_steps,
        kept_groups=frozenset(activate.kept_groups),
    )


def plan_to_stage(generation: int, plan: directive_pb2.StagePlan) -> PlanRequest:
    return replace(_plan_request(generation, plan), layers=sources(plan.layers))


def _plan_request(
    generation: int, command: directive_pb2.Activate | directive_pb2.StagePlan
) -> PlanRequest:
    return PlanRequest(
        generation=generation,
        pipelines=tuple(
            PipelineAssignment(
                stages=tuple(
                    StageAssignment(
                        engine_id=stage.engine_id,
                        data_address=stage.data_address,
                        first_layer=stage.first_layer,
                        num_layers=stage.num_layers,
                    )
                    for stage in pipeline.stages
                ),
                microbatches=tuple(pipeline.microbatches),
                changed_microbatches=tuple(pipeline.step_microbatches),
                keeps_step=pipeline.keeps_step,
            )
            for pipeline in command.pipelines
        ),
        followers=tuple(
            FollowerAssignment(
                engine_id=follower.engine_id,
                data_address=follower.data_address,
                layers=tuple(follower.layers),
            )
            for follower in command.followers
        ),
        store_address=command.store_address,
        rebuild_timeout_seconds=command.rebuild_timeout.ToNanoseconds() / 1e9,
    )


def sources(layers: Iterable[directive_pb2.LayerSource]) -> dict[int, tuple[str, ...]]:
    """Data addresses by layer, the preferred one first."""
    return {source.layer: tuple(source.addresses) for source in layers}


def wanted_layers(copy: directive_pb2.Copy) -> WantedLayers:
    return WantedLayers(
        version=copy.version, initial=copy.initial_layers, copied=sources(copy.layers)
    )


def activated(result: Activated) -> report_pb2.Activated:
    return report_pb2.Activated(
        rebuild_start_time=timestamp(result.rebuild_start_time),
        resume_time=timestamp(result.resume_time),
        committed_steps=result.committed_steps,
    )


def staged(result: Staged) -> report_pb2.Staged:
    copy_end_time = result.copy_end_time
    return report_pb2.Staged(
        bytes=result.num_bytes,
        start_time=timestamp(result.start_time),
        rebuild_end_time=timestamp(result.rebuild_end_time),
        copy_end_time=None if copy_end_time is None else timestamp(copy_end_time),
    )


def step_report(job_id: str, done: StepDone) -> report_pb2.StepReport:
    return report_pb2.StepReport(
        job_id=job_id,
        record=done.record.to_proto(),
        learning_rate=done.learning_rate,
        step_seconds=done.step_seconds,
        commit_time=timestamp(done.commit_time),
    )


def layer_written(entry: LayerEntry) -> report_pb2.LayerWritten:
    return report_pb2.LayerWritten(
        layer=entry.layer, bytes=entry.num_bytes, sha256=bytes.fromhex(entry.sha256)
    )


def layer_entry(message: report_pb2.LayerWritten) -> LayerEntry:
    return LayerEntry(layer=message.layer, num_bytes=message.bytes, sha256=message.sha256.hex())


def initial_state(facts: InitialStateFacts) -> report_pb2.InitialState | None:
    """None when the job begins from its seed."""
    if not facts.path:
        return None
    return report_pb2.InitialState(
        path=facts.path, step=facts.step, sha256=facts.sha256, num_tokens=facts.num_tokens
    )


def engine_fault(
    job_id: str, engine_id: str, generation: int, fault: Fault, time: datetime
) -> report_pb2.EngineFault:
    return report_pb2.EngineFault(
        job_id=job_id,
        engine_id=engine_id,
        generation=generation,
        failure=failure(fault.reason, fault.message, fault.metadata),
        fatal=fault.is_fatal,
        detect_time=timestamp(time),
    )


def link_failed(job_id: str, engine_id: str, failure: LinkFailure) -> report_pb2.LinkFailed:
    direction = "OUTGOING" if failure.is_outgoing else "INCOMING"
    return report_pb2.LinkFailed(
        job_id=job_id,
        engine_id=engine_id,
        peer_engine_id=failure.peer_engine_id,
        direction=report_pb2.LinkDirection.Value(f"LINK_DIRECTION_{direction}"),
        failure=report_pb2.LinkFailure.Value(f"LINK_FAILURE_{failure.kind}"),
        detect_time=timestamp(failure.detect_time),
    )
