"""What agents are sent: from the application's words to the worker protocol's messages."""

from dataclasses import replace
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from planaria.api.worker.v1 import directive_pb2, report_pb2, worker_service_pb2
from planaria_coordinator.application.agents.agent_messages import Welcome
from planaria_coordinator.domain.engines import directive as words


def duration(seconds: float) -> Duration:
    """Return seconds as protobuf has them."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def welcome_message(welcome: Welcome) -> worker_service_pb2.Welcome:
    return worker_service_pb2.Welcome(
        coordinator_id=welcome.coordinator_id,
        heartbeat_interval=duration(welcome.heartbeat_interval_seconds),
        node_deadline=duration(welcome.node_deadline_seconds),
        agent_lease=duration(welcome.agent_lease_seconds),
        progress_deadline=duration(welcome.progress_deadline_seconds),
    )


class PlanMessages:
    """What an Activate tells all engines alike, converted once for all of them."""

    def __init__(self) -> None:
        self._newest: words.Activate | None = None
        self._message = directive_pb2.Activate()

    def __call__(self, activate: words.Activate) -> directive_pb2.Activate:
        """Convert all but the layers, which are an engine's own."""
        plan = replace(activate, layers=())
        if plan != self._newest:  # quick: the commands of one plan share all that is large in it
            self._newest, self._message = plan, _plan_message(plan)
        return self._message


def directive_message(directive: words.Directive, plans: PlanMessages) -> directive_pb2.Directive:
    message = directive_pb2.Directive(
        directive_id=directive.id,
        job_id=directive.job_id,
        generation=directive.generation,
        engine_id=directive.engine_id,
    )
    match directive.command:
        case words.Prepare() as prepare:
            message.prepare.job_spec = prepare.job_spec
            message.prepare.accelerator = prepare.accelerator
            message.prepare.job_secret = prepare.job_secret
            message.prepare.forward_flops.extend(prepare.forward_flops)
            if prepare.initial_state is not None:
                message.prepare.initial_state.CopyFrom(
                    _initial_state_message(prepare.initial_state)
                )
        case words.Quiesce() as quiesce:
            message.quiesce.mode = directive_pb2.Quiesce.Mode.Value(f"MODE_{quiesce.mode}")
            message.quiesce.lost_engine_ids.extend(quiesce.lost_engine_ids)
        case words.Commit(record=record):
            message.commit.record.CopyFrom(_record_message(record))
        case words.Copy() as copy:
            message.copy.layers.extend(_source_message(source) for source in copy.layers)
            message.copy.initial_layers.extend(copy.initial_layers)
            message.copy.version = copy.version
        case words.Activate() as activate:
            message.activate.CopyFrom(plans(activate))
            message.activate.layers.extend(_source_message(s) for s in activate.layers)
        case words.Switch():
            message.switch.SetInParent()
        case words.DigestLayers(layers=layers):
            message.digest_layers.layers.extend(layers)
        case words.Export() as export:
            message.export.path = export.path
            message.export.format = export.format
            message.export.layers.extend(_source_message(source) for source in export.layers)
        case words.WriteCheckpoint(version=version, layers=layers):
            message.write_checkpoint.version = version
            message.write_checkpoint.layers.extend(layers)
        case words.SealCheckpoint(version=version, layers=written):
            message.seal_checkpoint.version = version
            message.seal_checkpoint.layers.extend(_written_message(layer) for layer in written)
        case words.DiscardCheckpoint(version=version):
            message.discard_checkpoint.version = version
        case words.Stop(reason=reason):
            message.stop.reason = reason
    return message


def _record_message(record: words.CommitRecord) -> report_pb2.CommitRecord:
    return report_pb2.CommitRecord(
        step=record.step,
        generation=record.generation,
        gradient_norm=record.gradient_norm,
        loss=record.loss,
        num_tokens=record.num_tokens,
        next_generation=record.next_generation,
        evaluation_loss=record.evaluation_loss,
    )


def _initial_state_message(initial_state: words.InitialState) -> report_pb2.InitialState:
    return report_pb2.InitialState(
        path=initial_state.path,
        step=initial_state.step,
        sha256=bytes.fromhex(initial_state.sha256),
        num_tokens=initial_state.num_tokens,
    )


def _written_message(written: words.LayerWritten) -> report_pb2.LayerWritten:
    return report_pb2.LayerWritten(
        layer=written.layer, bytes=written.num_bytes, sha256=bytes.fromhex(written.sha256)
    )


def _source_message(source: words.LayerSource) -> directive_pb2.LayerSource:
    return directive_pb2.LayerSource(layer=source.layer, addresses=source.addresses)


def _plan_message(activate: words.Activate) -> directive_pb2.Activate:
    return directive_pb2.Activate(
        pipelines=[
            directive_pb2.PipelineAssignment(
                stages=[
                    directive_pb2.StageAssignment(
                        engine_id=stage.engine_id,
                        data_address=stage.data_address,
                        first_layer=stage.first_layer,
                        num_layers=stage.num_layers,
                    )
                    for stage in pipeline.stages
                ],
                microbatches=pipeline.microbatches,
                step_microbatches=pipeline.step_microbatches,
                keeps_step=pipeline.keeps_step,
            )
            for pipeline in activate.pipelines
        ],
        followers=[
            directive_pb2.FollowerAssignment(
                engine_id=follower.engine_id,
                data_address=follower.data_address,
                layers=follower.layers,
            )
            for follower in activate.followers
        ],
        committed_steps=activate.committed_steps,
        store_address=activate.store_address,
        rebuild_timeout=duration(activate.rebuild_timeout_seconds),
        at_commit=activate.at_commit,
        kept_groups=activate.kept_groups,
    )
