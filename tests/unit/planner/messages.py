"""A small problem as the planner is sent it."""

from planaria.api.common.v1 import profile_pb2
from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria_planner.cost.profile import ModelProfile
from unit.planner.profiles import equal_layers


def profile_message(profile: ModelProfile) -> profile_pb2.ModelProfile:
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
        layers=[
            profile_pb2.LayerProfile(
                name=layer.name,
                forward_seconds=layer.forward_seconds,
                backward_seconds=layer.backward_seconds,
                parameter_bytes=layer.parameter_bytes,
                state_bytes=layer.state_bytes,
                activation_bytes=layer.activation_bytes,
                output_bytes=layer.output_bytes,
            )
            for layer in profile.layers
        ],
    )


def small_problem(**changes: int) -> pb.Problem:
    return pb.Problem(
        profile=profile_message(equal_layers(6, accelerators=2)),
        **{
            "num_microbatches": 8,
            "fault_tolerance": 1,
            "min_nodes_per_pipeline": 2,
            **changes,
        },
    )


def plan_nodes(*names: str) -> list[pb.PlanNode]:
    return [pb.PlanNode(node_id=name) for name in names]
