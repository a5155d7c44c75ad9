"""The planner over gRPC: every call, and every refusal with its reason."""

import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import pytest

from planaria.api.common.v1 import profile_pb2
from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceStub
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.grpcclient import bearer, open_channel, rpc_errors
from planaria_common.grpcwire import is_healthy
from planaria_planner import server
from planaria_planner.profile import ModelProfile
from planaria_planner.server import planner_server
from planaria_planner.templates import remembered_templates
from unit.planner.profiles import equal_layers, random_profile

if TYPE_CHECKING:  # the name exists for type checkers only
    from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceAsyncStub


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


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = planner_server(host="127.0.0.1", port=0, token="secret")
    await server.start()
    # A first call on a fresh machine compiles the inner loops.
    channel = open_channel(server.address, token="secret", deadline_seconds=120)
    yield channel
    await channel.close()
    await server.stop(grace_seconds=0)


@pytest.fixture
def planner(channel: grpc.aio.Channel) -> "PlannerServiceAsyncStub":
    return PlannerServiceStub(channel)


async def test_the_server_is_healthy(channel: grpc.aio.Channel) -> None:
    assert await is_healthy(channel, timeout_seconds=5)


async def test_templates_of_every_size(planner: "PlannerServiceAsyncStub") -> None:
    answer = await planner.GenerateTemplates(
        pb.GenerateTemplatesRequest(problem=small_problem(), max_nodes=4)
    )
    assert answer.min_nodes == 2
    assert {template.num_nodes for template in answer.templates} == {2, 3, 4}
    for template in answer.templates:
        assert sum(stage.num_layers for stage in template.stages) == 6
        assert list(template.node_kinds) == ["node"] * template.num_nodes
        assert template.microbatch_seconds > 0


async def test_a_new_job_then_a_lost_node_then_a_simulation(
    planner: "PlannerServiceAsyncStub",
) -> None:
    """The plan that one call returns is what the next ones take."""
    problem = small_problem()
    first = await planner.Instantiate(
        pb.InstantiateRequest(problem=problem, nodes=plan_nodes(*"abcde"))
    )
    assert first.plan.fault_tolerance == 1
    assert first.min_nodes == 2
    assert "bound by stage" in first.reason
    assert first.next_best_iteration_seconds >= first.plan.iteration_seconds
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
    assert second.fault_tolerance_met
    assert len(second.plan.pipelines) == 2
    assert second.candidates[0].steps_within_horizon == max(
        candidate.steps_within_horizon for candidate in second.candidates
    )
    for copy in second.copies:
        assert copy.layer in layers[copy.source_node_id]
        assert copy.layer not in layers.get(copy.destination_node_id, [])
        assert copy.bytes == 1000

    third = await planner.Simulate(pb.SimulateRequest(problem=problem, plan=second.plan))
    assert third.iteration_seconds == pytest.approx(second.plan.iteration_seconds, rel=0.2)
    assert third.predicted_seconds == second.plan.iteration_seconds
    num_stages = {i: len(p.stages) for i, p in enumerate(second.plan.pipelines)}
    assert len(third.actions) == sum(
        2 * num_stages[i] * len(p.microbatches) for i, p in enumerate(second.plan.pipelines)
    )


async def test_progress_ends_with_the_answer(planner: "PlannerServiceAsyncStub") -> None:
    request = pb.InstantiateRequest(problem=small_problem(), nodes=plan_nodes(*"abcde"))
    answer = await planner.Instantiate(request)
    told = [
        one
        async for one in planner.InstantiateWithProgress(
            pb.InstantiateWithProgressRequest(request=request), metadata=bearer("secret")
        )
    ]
    fractions = [one.done_fraction for one in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert told[-1].answer == answer
    assert not any(one.HasField("answer") for one in told[:-1])


async def test_templates_and_changes_tell_their_progress_too(
    planner: "PlannerServiceAsyncStub",
) -> None:
    """With the answers of the calls that tell none."""
    templates = pb.GenerateTemplatesRequest(problem=small_problem(), max_nodes=4)
    change = pb.ReconfigureRequest(
        problem=small_problem(), nodes=plan_nodes(*"abcd"), horizon_seconds=60
    )
    told_templates = [
        one
        async for one in planner.GenerateTemplatesWithProgress(
            pb.GenerateTemplatesWithProgressRequest(request=templates), metadata=bearer("secret")
        )
    ]
    assert told_templates[-1].answer == await planner.GenerateTemplates(templates)
    assert told_templates[-1].done_fraction == 1
    told_change = [
        one
        async for one in planner.ReconfigureWithProgress(
            pb.ReconfigureWithProgressRequest(request=change), metadata=bearer("secret")
        )
    ]
    assert told_change[-1].answer == await planner.Reconfigure(change)
    assert told_change[-1].done_fraction == 1


async def test_a_long_call_tells_how_far_it_has_come(
    planner: "PlannerServiceAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told often enough, every call does, and only ever more."""
    monkeypatch.setattr(server, "PROGRESS_SECONDS", 0.001)
    problem = pb.Problem(
        profile=profile_message(random_profile(random.Random(1), num_layers=60)),
        num_microbatches=64,
    )
    nodes = plan_nodes(*(f"n{i:02}" for i in range(60)))
    templates = pb.GenerateTemplatesRequest(problem=problem, max_nodes=60)
    first = await planner.Instantiate(pb.InstantiateRequest(problem=problem, nodes=nodes))
    present = pb.ReconfigureRequest(
        problem=problem, nodes=nodes, current=first.plan, horizon_seconds=60
    )
    remembered_templates.cache_clear()
    fractions = [
        one.done_fraction
        async for one in planner.GenerateTemplatesWithProgress(
            pb.GenerateTemplatesWithProgressRequest(request=templates), metadata=bearer("secret")
        )
    ]
    remembered_templates.cache_clear()
    ahead = await plans_ahead(planner, present)
    for told in (fractions, [one.done_fraction for one in ahead]):
        assert len(told) > 2
        assert told == sorted(told)
        assert told[-1] == 1
    losses = [one.lost_node_id for one in ahead if one.lost_node_id]
    assert losses == sorted(node_id for node_id in losses if node_id)
    assert ahead[-1].lost_node_id == losses[-1]


async def test_a_refusal_ends_the_progress(planner: "PlannerServiceAsyncStub") -> None:
    request = pb.InstantiateRequest(problem=small_problem(), nodes=plan_nodes("a"))
    call = planner.InstantiateWithProgress(
        pb.InstantiateWithProgressRequest(request=request), metadata=bearer("secret")
    )
    with pytest.raises(PlanariaError, match="not enough nodes"), rpc_errors("planner"):
        async for _ in call:
            pass


async def test_a_simulation_knows_kinds_and_speeds(planner: "PlannerServiceAsyncStub") -> None:
    """Nodes of a slower kind, one of them slowed further, take as long as their plan says."""
    problem = small_problem(fault_tolerance=0)
    kinds = problem.profile.hardware.node_kinds
    kinds.add(
        name="old",
        accelerators_per_node=2,
        accelerator_memory_bytes=kinds[0].accelerator_memory_bytes,
        relative_speed=0.5,
    )
    nodes = [pb.PlanNode(node_id=name, kind="old") for name in "ab"]
    nodes[1].relative_speed = 0.8
    first = await planner.Instantiate(pb.InstantiateRequest(problem=problem, nodes=nodes))
    as_it_is = await planner.Simulate(
        pb.SimulateRequest(problem=problem, plan=first.plan, nodes=nodes)
    )
    assert as_it_is.predicted_seconds == pytest.approx(first.plan.iteration_seconds, rel=1e-12)
    first_kind = await planner.Simulate(pb.SimulateRequest(problem=problem, plan=first.plan))
    # What takes no computing, the sends, is not slowed by the kind.
    assert as_it_is.iteration_seconds == pytest.approx(
        first_kind.iteration_seconds / 0.5 / 0.8, rel=1e-3
    )


async def test_copies_come_in_pieces_when_asked_for(planner: "PlannerServiceAsyncStub") -> None:
    problem = small_problem(fault_tolerance=0, min_nodes_per_pipeline=1, num_microbatches=10)
    everything = [pb.Holding(node_id=node, layers=range(6)) for node in "abcd"]
    request = pb.ReconfigureRequest(
        problem=problem,
        nodes=plan_nodes(*"efghi"),
        holdings=everything,
        horizon_seconds=1e6,
    )
    whole = await planner.Reconfigure(request)
    assert {copy.bytes for copy in whole.copies} == {1000}
    request.chunk_bytes = 1
    pieces = await planner.Reconfigure(request)
    assert {copy.first_byte for copy in pieces.copies} > {0}
    assert sum(copy.bytes for copy in pieces.copies) == sum(copy.bytes for copy in whole.copies)


async def plans_ahead(
    planner: "PlannerServiceAsyncStub", present: pb.ReconfigureRequest
) -> list[pb.PlanAheadResponse]:
    request = pb.PlanAheadRequest(present=present)
    return [one async for one in planner.PlanAhead(request, metadata=bearer("secret"))]


async def test_plans_for_every_loss_ahead(planner: "PlannerServiceAsyncStub") -> None:
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
    ahead = await plans_ahead(planner, present)
    assert [one.lost_node_id for one in ahead] == ["a", "b"]
    for one in ahead:
        nodes = {stage.node_id for stage in one.next.plan.pipelines[0].stages}
        assert nodes == set("abc") - {one.lost_node_id}

    del present.nodes[2]
    ahead = await plans_ahead(planner, present)
    assert {one.error_reason for one in ahead} == {"NOT_ENOUGH_NODES"}
    assert {one.error_message for one in ahead} == {"not enough nodes: have 1, need 2"}


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
