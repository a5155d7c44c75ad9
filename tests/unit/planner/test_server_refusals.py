"""Every refusal of the planner has its reason."""

from typing import TYPE_CHECKING

import pytest

from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.grpcclient import rpc_errors
from unit.planner.messages import plan_nodes, small_problem

if TYPE_CHECKING:  # the name exists for type checkers only
    from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceAsyncStub


REFUSED = {
    "too few microbatches": (
        {"num_microbatches": 1},
        5,
        ErrorReason.NOT_ENOUGH_MICROBATCHES,
        {"have": "1", "need": "2"},
    ),
    "no microbatches": ({"num_microbatches": 0}, 5, ErrorReason.INVALID_ARGUMENT, {}),
    "too few nodes for the model": (
        {},
        1,
        ErrorReason.NOT_ENOUGH_NODES,
        {"have": "1", "need": "2"},
    ),
    "too few nodes for f": (
        {},
        3,
        ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE,
        {"fault_tolerance": "1", "possible": "0", "have": "3", "need": "4"},
    ),
    "a pipeline longer than the model": (
        {"min_nodes_per_pipeline": 7},
        20,
        ErrorReason.INVALID_ARGUMENT,
        {"field": "min_nodes_per_pipeline", "expected": "at most 6"},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_job_that_cannot_be_is_refused_with_the_reason(
    planner: "PlannerServiceAsyncStub", case: str
) -> None:
    changes, num_nodes, reason, metadata = REFUSED[case]
    nodes = plan_nodes(*(f"n{i}" for i in range(num_nodes)))
    with pytest.raises(PlanariaError) as caught, rpc_errors("planner"):
        await planner.Instantiate(
            pb.InstantiateRequest(problem=small_problem(**changes), nodes=nodes)
        )
    assert caught.value.reason is reason
    assert metadata.items() <= caught.value.metadata.items()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (plan_nodes("a", "a"), "the node id 'a' comes twice"),
        (plan_nodes(""), "the node id '' is empty"),
        ([pb.PlanNode(node_id="a", kind="tpu")], "no kind 'tpu'; it has node"),
        ([pb.PlanNode(node_id="a", relative_speed=-1)], "relative_speed of a is -1.0"),
        ([pb.PlanNode(node_id="a", relative_speed=float("nan"))], "relative_speed of a is nan"),
    ],
)
async def test_bad_nodes_are_refused(
    planner: "PlannerServiceAsyncStub", nodes: list[pb.PlanNode], message: str
) -> None:
    with pytest.raises(PlanariaError, match=message), rpc_errors("planner"):
        await planner.Instantiate(pb.InstantiateRequest(problem=small_problem(), nodes=nodes))


async def test_a_bad_profile_names_its_field(planner: "PlannerServiceAsyncStub") -> None:
    problem = small_problem()
    problem.profile.layers[3].forward_seconds[2] = float("nan")
    with pytest.raises(PlanariaError) as caught, rpc_errors("planner"):
        await planner.GenerateTemplates(pb.GenerateTemplatesRequest(problem=problem, max_nodes=2))
    assert caught.value.reason is ErrorReason.INVALID_PROFILE
    assert caught.value.metadata == {"field": "layers[3].forward_seconds.2"}


async def test_a_running_plan_with_a_gap_is_refused(planner: "PlannerServiceAsyncStub") -> None:
    problem = small_problem()
    first = await planner.Instantiate(
        pb.InstantiateRequest(problem=problem, nodes=plan_nodes(*"abcd"))
    )
    del first.plan.pipelines[1].stages[0]
    with pytest.raises(PlanariaError, match=r"current.pipelines\[1\]"), rpc_errors("planner"):
        await planner.Reconfigure(
            pb.ReconfigureRequest(
                problem=problem, nodes=plan_nodes(*"abcd"), current=first.plan, horizon_seconds=1
            )
        )
