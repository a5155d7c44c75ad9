"""A small problem as the planner is sent it."""

from planaria.api.common.v1 import profile_pb2
from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria_common.messages import to_message
from unit.planner.profiles import equal_layers


def small_problem(**changes: int) -> pb.Problem:
    return pb.Problem(
        profile=to_message(equal_layers(6, accelerators=2), profile_pb2.ModelProfile),
        **{
            "num_microbatches": 8,
            "fault_tolerance": 1,
            "min_nodes_per_pipeline": 2,
            **changes,
        },
    )


def plan_nodes(*names: str) -> list[pb.PlanNode]:
    return [pb.PlanNode(node_id=name) for name in names]
