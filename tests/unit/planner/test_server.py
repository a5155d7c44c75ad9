"""The planner over gRPC: every call and its answer."""

from typing import TYPE_CHECKING

import grpc
import pytest

from planaria.api.common.v1 import profile_pb2
from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria_common.grpcclient import bearer
from planaria_common.grpcwire import is_healthy
from planaria_common.messages import to_message
from unit.planner.messages import plan_nodes, small_problem
from unit.planner.profiles import equal_layers

if TYPE_CHECKING:  # the name exists for type checkers only
    from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceAsyncStub


async def test_the_server_is_healthy(channel: grpc.aio.Channel) -> None:
    assert await is_healthy(channel, timeout_seconds=5)


async def test_the_fewest_nodes(planner: "PlannerServiceAsyncStub") -> None:
    answer = await planner.GenerateTemplates(
        pb.GenerateTemplatesRequest(problem=small_problem(), max_nodes=4)
    )
    assert answer.min_nodes == 2


@pytest.mark.parametrize(("memory_bytes", "most"), [(1150, 1), (1 << 40, 0)])
async def test_a_plan_says_how_many_microbatches_fit(
    planner: "PlannerServiceAsyncStub", memory_bytes: int, most: int
) -> None:
    """A layer of 1,000 bytes a node, and 100 bytes for each microbatch in flight; 0: all fit."""
    problem = small_problem(num_microbatches=1, fault_tolerance=0, min_nodes_per_pipeline=4)
    profile = equal_layers(4, memory_bytes=memory_bytes)
    problem.profile.CopyFrom(to_message(profile, profile_pb2.ModelProfile))
    answer = await planner.Instantiate(
        pb.InstantiateRequest(problem=problem, nodes=plan_nodes(*"abcd"))
    )
    assert [pipeline.max_microbatches for pipeline in answer.plan.pipelines] == [most]


async def test_a_new_job_then_a_lost_node(planner: "PlannerServiceAsyncStub") -> None:
    """The plan that one call returns is what the next one takes."""
    problem = small_problem()
    first = await planner.Instantiate(
        pb.InstantiateRequest(problem=problem, nodes=plan_nodes(*"abcde"))
    )
    assert first.plan.fault_tolerance == 1
    assert first.min_nodes == 2
    assert "bound by stage" in first.reason
    microbatches = [m for pipeline in first.plan.pipelines for m in pipeline.microbatches]
    assert microbatches == list(range(8))
    for pipeline in first.plan.pipelines:
        for stage in pipeline.stages:
            assert stage.node_id in "abcde"
            assert set(stage.accelerators) <= {0, 1}

    lost = first.plan.pipelines[0].stages[0].node_id
    layers: dict[str, list[int]] = {}
    for pipeline in first.plan.pipelines:
        for stage in pipeline.stages:
            held = range(stage.first_layer, stage.first_layer + stage.num_layers)
            layers.setdefault(stage.node_id, []).extend(held)
    del layers[lost]
    second = await planner.Reconfigure(
        pb.ReconfigureRequest(
            problem=problem,
            nodes=plan_nodes(*(node for node in "abcde" if node != lost)),
            current=first.plan,
            holdings=[pb.Holding(node_id=node, layers=held) for node, held in layers.items()],
            horizon_seconds=600,
        )
    )
    assert second.plan.fault_tolerance == 1
    assert len(second.plan.pipelines) == 2
    for copy in second.copies:
        assert copy.layer in layers[copy.source_node_id]
        assert copy.layer not in layers.get(copy.destination_node_id, [])


async def contingencies(
    planner: "PlannerServiceAsyncStub", present: pb.ReconfigureRequest
) -> list[pb.PlanContingenciesResponse]:
    request = pb.PlanContingenciesRequest(present=present)
    return [one async for one in planner.PlanContingencies(request, metadata=bearer("secret"))]


async def test_contingency_plans_for_every_loss(planner: "PlannerServiceAsyncStub") -> None:
    problem = small_problem(fault_tolerance=0)
    first = await planner.Instantiate(
        pb.InstantiateRequest(problem=problem, nodes=plan_nodes(*"ab"))
    )
    present = pb.ReconfigureRequest(
        problem=problem,
        nodes=plan_nodes(*"abc"),
        current=first.plan,
        holdings=[pb.Holding(node_id=node, layers=range(6)) for node in "ab"],
        horizon_seconds=600,
    )
    found = await contingencies(planner, present)
    assert [one.lost_node_id for one in found] == ["a", "b"]
    for one in found:
        nodes = {stage.node_id for stage in one.next.plan.pipelines[0].stages}
        assert nodes == set("abc") - {one.lost_node_id}

    del present.nodes[2]
    found = await contingencies(planner, present)
    assert {one.error_reason for one in found} == {"NOT_ENOUGH_NODES"}
    assert {one.error_message for one in found} == {"not enough nodes: have 1, need 2"}
