"""The planners behind several addresses look like one that answers or says why not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest

from benchmarks.common.ports import free_port
from planaria.api.common.v1 import plan_pb2
from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria.api.planner.v1.planner_service_pb2_grpc import (
    PlannerServiceServicer,
    add_PlannerServiceServicer_to_server,
)
from planaria_common.errors import (
    ConflictError,
    ErrorReason,
    PlanariaError,
    UnavailableError,
)
from planaria_common.grpcserver import GrpcServer
from planaria_common.messages import to_message
from planaria_coordinator.adapters.planner_client import PlannerClient
from planaria_coordinator.domain.placement.planner_query import (
    Holding,
    LayerCopy,
    PlanNode,
    PlanQuery,
    Problem,
)
from unit.coordinator_edge.conftest import TOKEN
from unit.coordinator_edge.fakes import PLAN
from unit.coordinator_edge.test_scheduler import PROFILE

Context = grpc.aio.ServicerContext[Any, Any]
QUERY = PlanQuery(
    problem=Problem(
        profile=PROFILE, num_microbatches=3, fault_tolerance=0, min_nodes_per_pipeline=2
    ),
    nodes=(PlanNode(node_id="a"), PlanNode(node_id="b", kind="cpu", relative_speed=0.5)),
)


PLAN_MESSAGE = to_message(PLAN, plan_pb2.Plan)


class FakePlanner(PlannerServiceServicer):
    """Answers every question with one plan, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: PlanariaError | None = None
        self.frozen = False

    async def _note(self, request: Any) -> None:
        self.asked.append(request)
        if self.frozen:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def Instantiate(
        self, request: pb.InstantiateRequest, context: Context
    ) -> pb.InstantiateResponse:
        await self._note(request)
        return pb.InstantiateResponse(plan=PLAN_MESSAGE, reason="fastest", min_nodes=2)

    async def Reconfigure(
        self, request: pb.ReconfigureRequest, context: Context
    ) -> pb.ReconfigureResponse:
        await self._note(request)
        return pb.ReconfigureResponse(
            plan=PLAN_MESSAGE,
            copies=[pb.LayerCopy(layer=1, source_node_id="a", destination_node_id="b")],
            reason="shrunk",
            min_nodes=2,
        )

    async def GenerateTemplates(
        self, request: pb.GenerateTemplatesRequest, context: Context
    ) -> pb.GenerateTemplatesResponse:
        await self._note(request)
        return pb.GenerateTemplatesResponse(min_nodes=2)

    async def PlanContingencies(
        self, request: pb.PlanContingenciesRequest, context: Context
    ) -> AsyncIterator[pb.PlanContingenciesResponse]:
        await self._note(request)
        present = pb.ReconfigureResponse(plan=PLAN_MESSAGE, reason="shrunk", min_nodes=2)
        yield pb.PlanContingenciesResponse(lost_node_id="a", next=present)
        yield pb.PlanContingenciesResponse(lost_node_id="b", error_reason="NOT_ENOUGH_NODES")


def server_of(planner: FakePlanner) -> GrpcServer:
    return GrpcServer(
        part="planner",
        services={
            "planaria.api.planner.v1.PlannerService": partial(
                add_PlannerServiceServicer_to_server, planner
            )
        },
        host="127.0.0.1",
        port=0,
        token=TOKEN,
    )


@pytest.fixture
async def planners() -> AsyncIterator[dict[str, FakePlanner]]:
    """Two planners by their addresses."""
    running = [(server_of(planner), planner) for planner in (FakePlanner(), FakePlanner())]
    for server, _ in running:
        await server.start()
    yield {server.address: planner for server, planner in running}
    for server, _ in running:
        await server.stop(grace_seconds=0)


Connect = Callable[..., PlannerClient]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    opened: list[PlannerClient] = []

    def open_client(*addresses: str, deadline_seconds: float = 10.0) -> PlannerClient:
        client = PlannerClient(
            addresses,
            token=TOKEN,
            deadline_seconds=deadline_seconds,
            random_share=lambda: 0.0,
            pauses_seconds=(0.0,),
        )
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        await client.close()


async def test_a_new_job(planners: dict[str, FakePlanner], connect: Connect) -> None:
    """Without a current plan the planner instantiates; the query arrives whole."""
    address, planner = next(iter(planners.items()))

    answer = await connect(address).plan(QUERY)

    assert (answer.plan, answer.reason, answer.min_nodes) == (PLAN, "fastest", 2)
    [request] = planner.asked
    assert request.problem.num_microbatches == 3
    assert request.problem.min_nodes_per_pipeline == 2
    assert request.problem.profile.layers[4].state_bytes == 16
    assert [node.relative_speed for node in request.nodes] == [0.0, 0.5]


async def test_a_plan_that_follows(planners: dict[str, FakePlanner], connect: Connect) -> None:
    """With a current plan it reconfigures, and says what is to be copied."""
    address, planner = next(iter(planners.items()))
    query = replace(
        QUERY, current=PLAN, holdings=(Holding(node_id="a", layers=(0, 1)),), horizon_seconds=60.0
    )

    answer = await connect(address).plan(query)

    assert answer.copies == (LayerCopy(layer=1, source_node_id="a", destination_node_id="b"),)
    [request] = planner.asked
    assert request.current == PLAN_MESSAGE
    assert list(request.holdings[0].layers) == [0, 1]


async def test_contingency_plans_are_asked_for_each_loss(
    planners: dict[str, FakePlanner], connect: Connect
) -> None:
    """Losses that nothing follows are left out; a planner that is away is not asked twice."""
    client = connect("127.0.0.1:1", *planners)
    query = replace(QUERY, current=PLAN, horizon_seconds=60.0)

    with pytest.raises(UnavailableError):
        await anext(client.contingency_plans(query))
    found = [item async for item in client.contingency_plans(query)]

    assert [(node_id, answer.plan) for node_id, answer in found] == [("a", PLAN)]
    [request] = next(iter(planners.values())).asked
    assert request.present.horizon_seconds == 60.0
    assert len(request.present.current.pipelines) == len(PLAN.pipelines)


@pytest.mark.parametrize("ask", [PlannerClient.plan, PlannerClient.min_nodes])
async def test_errors_are_the_planners_own(
    planners: dict[str, FakePlanner],
    connect: Connect,
    ask: Callable[[PlannerClient, PlanQuery], Awaitable[Any]],
) -> None:
    """What is impossible on one planner is not asked of the others."""
    error = PlanariaError(
        ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE, "1 is possible", {"possible": "1"}
    )
    for planner in planners.values():
        planner.error = error

    with pytest.raises(ConflictError) as raised:
        await ask(connect(*planners), QUERY)

    assert raised.value.metadata == {"possible": "1"}
    assert sum(len(planner.asked) for planner in planners.values()) == 1


async def test_the_fewest_nodes(planners: dict[str, FakePlanner], connect: Connect) -> None:
    """n0 does not depend on how many nodes there are now."""
    address, planner = next(iter(planners.items()))
    client = connect(address)

    assert await client.min_nodes(QUERY) == 2
    planner.error = PlanariaError(
        ErrorReason.NOT_ENOUGH_NODES, "have 2, need 4", {"have": "2", "need": "4"}
    )
    assert await client.min_nodes(QUERY) == 4


async def test_a_planner_that_is_away_is_passed_over(
    planners: dict[str, FakePlanner], connect: Connect
) -> None:
    """The next address answers, and is asked first from then on."""
    address, planner = next(iter(planners.items()))
    client = connect(f"127.0.0.1:{free_port()}", address)

    for _ in range(3):
        assert (await client.plan(QUERY)).plan == PLAN

    assert len(planner.asked) == 3
    await client.ping()


async def test_a_planner_that_hangs_is_passed_over(
    planners: dict[str, FakePlanner], connect: Connect
) -> None:
    """After the deadline the next one is asked."""
    (first, hanging), (second, _) = planners.items()
    hanging.frozen = True

    answer = await connect(first, second, deadline_seconds=1.0).plan(QUERY)

    assert answer.plan == PLAN
    assert len(hanging.asked) == 1


async def test_no_planner_at_all(connect: Connect) -> None:
    """After a few rounds: which part is missing, and where it was sought."""
    address = f"127.0.0.1:{free_port()}"
    client = connect(address)

    with pytest.raises(UnavailableError, match=address) as raised:
        await client.plan(QUERY)
    assert raised.value.metadata == {"part": "planner"}
    with pytest.raises(UnavailableError, match=address):
        await client.ping()
