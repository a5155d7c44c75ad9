"""Plans and model profiles as protobuf messages: for planners and for custom schedulers."""

from planaria.api.common.v1 import plan_pb2, profile_pb2
from planaria_coordinator.domain.placement.plan import Pipeline, Plan, Stage
from planaria_coordinator.domain.placement.planner_query import LayerProfile, ModelProfile


def profile_message(profile: ModelProfile) -> profile_pb2.ModelProfile:
    """Return a model's costs; they are those of one accelerator."""
    hardware = profile.hardware
    return profile_pb2.ModelProfile(
        microbatch_size=profile.microbatch_size,
        hardware=profile_pb2.HardwareProfile(
            node_kinds=[
                profile_pb2.NodeKind(
                    name=kind.name,
                    accelerators_per_node=kind.accelerators_per_node,
                    accelerator_memory_bytes=kind.accelerator_memory_bytes,
                    relative_speed=kind.relative_speed,
                )
                for kind in hardware.node_kinds
            ],
            intra_node_bytes_per_second=hardware.intra_node_bytes_per_second,
            inter_node_bytes_per_second=hardware.inter_node_bytes_per_second,
            link_latency_seconds=hardware.link_latency_seconds,
        ),
        layers=[_layer_profile(layer) for layer in profile.layers],
    )


def _layer_profile(layer: LayerProfile) -> profile_pb2.LayerProfile:
    return profile_pb2.LayerProfile(
        name=layer.name,
        forward_seconds={1: layer.forward_seconds},
        backward_seconds={1: layer.backward_seconds},
        parameter_bytes=layer.parameter_bytes,
        state_bytes=layer.state_bytes,
        activation_bytes=layer.activation_bytes,
        output_bytes=layer.output_bytes,
    )


def plan_message(plan: Plan) -> plan_pb2.Plan:
    return plan_pb2.Plan(
        pipelines=[_pipeline_message(pipeline) for pipeline in plan.pipelines],
        idle_node_ids=plan.idle_node_ids,
        iteration_seconds=plan.iteration_seconds,
        fault_tolerance=plan.fault_tolerance,
    )


def _pipeline_message(pipeline: Pipeline) -> plan_pb2.Pipeline:
    return plan_pb2.Pipeline(
        stages=[
            plan_pb2.Stage(
                first_layer=stage.first_layer,
                num_layers=stage.num_layers,
                node_index=stage.node_index,
                node_id=stage.node_id,
                accelerators=stage.accelerators,
            )
            for stage in pipeline.stages
        ],
        microbatches=pipeline.microbatches,
        iteration_seconds=pipeline.iteration_seconds,
        max_microbatches=pipeline.max_microbatches,
    )


def plan_from_message(message: plan_pb2.Plan) -> Plan:
    return Plan(
        pipelines=tuple(_pipeline(pipeline) for pipeline in message.pipelines),
        idle_node_ids=tuple(message.idle_node_ids),
        iteration_seconds=message.iteration_seconds,
        fault_tolerance=message.fault_tolerance,
    )


def _pipeline(message: plan_pb2.Pipeline) -> Pipeline:
    return Pipeline(
        stages=tuple(
            Stage(
                first_layer=stage.first_layer,
                num_layers=stage.num_layers,
                node_index=stage.node_index,
                node_id=stage.node_id,
                accelerators=tuple(stage.accelerators),
            )
            for stage in message.stages
        ),
        microbatches=tuple(message.microbatches),
        iteration_seconds=message.iteration_seconds,
        max_microbatches=message.max_microbatches,
    )
