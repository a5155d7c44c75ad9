"""The planner's service, behind any of several addresses."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from planaria.api.common.v1 import plan_pb2, profile_pb2
from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceStub
from planaria_common.errors import ErrorReason, PlanariaError, UnavailableError
from planaria_common.grpcclient import bearer, open_channel, rpc_errors
from planaria_common.grpcwire import is_healthy
from planaria_common.messages import from_message, to_message
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.placement.planner_query import (
    LayerCopy,
    PlanAnswer,
    PlanQuery,
    Problem,
)

if TYPE_CHECKING:  # the generated stub is one class at run time
    from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceAsyncStub

AnswerT = TypeVar("AnswerT")
_PING_SECONDS = 2.0


class PlannerClient:
    """Asks the planners, beginning with the one that answered last.

    Args:
        addresses: HOST:PORT of each.
        token: the cluster's.
        deadline_seconds: how long one planner may take for one call.
        random_share: a random number from 0 to 1, which keeps coordinators from retrying in step.
        pauses_seconds: before each further round over the addresses; by chance up to twice that.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str,
        deadline_seconds: float,
        random_share: Callable[[], float] = random.random,
        pauses_seconds: Sequence[float] = (0.1, 0.4),
    ) -> None:
        self._channels = {
            address: open_channel(address, token=token, deadline_seconds=deadline_seconds)
            for address in addresses
        }
        self._addresses = list(addresses)
        self._credential = bearer(token)
        self._random_share = random_share
        self._pauses_seconds = pauses_seconds

    async def plan(self, query: PlanQuery) -> PlanAnswer:
        if query.current is None:
            return await self._instantiate(query)
        answer = await self._ask(lambda stub: stub.Reconfigure(_reconfigure_request(query)))
        return _next_plan(answer)

    async def contingency_plans(self, query: PlanQuery) -> AsyncIterator[tuple[str, PlanAnswer]]:
        request = pb.PlanContingenciesRequest(present=_reconfigure_request(query))
        address = self._addresses[0]
        stub = PlannerServiceStub(self._channels[address])
        try:
            with rpc_errors(f"planner at {address}"):
                async for response in stub.PlanContingencies(request, metadata=self._credential):
                    if response.HasField("next"):
                        yield response.lost_node_id, _next_plan(response.next)
        except UnavailableError:
            self._addresses.append(self._addresses.pop(0))  # the next try asks another one
            raise

    async def _instantiate(self, query: PlanQuery) -> PlanAnswer:
        request = pb.InstantiateRequest(
            problem=_problem(query.problem),
            nodes=[to_message(node, pb.PlanNode) for node in query.nodes],
        )
        answer = await self._ask(lambda stub: stub.Instantiate(request))
        return PlanAnswer(
            plan=from_message(answer.plan, Plan), reason=answer.reason, min_nodes=answer.min_nodes
        )

    async def min_nodes(self, query: PlanQuery) -> int:
        fewest = max(query.problem.min_nodes_per_pipeline, 1)
        request = pb.GenerateTemplatesRequest(
            problem=_problem(query.problem),
            max_nodes=max(len(query.nodes), fewest),
        )
        try:
            return (await self._ask(lambda stub: stub.GenerateTemplates(request))).min_nodes
        except PlanariaError as error:
            if error.reason is ErrorReason.NOT_ENOUGH_NODES and "need" in error.metadata:
                return int(error.metadata["need"])
            raise

    async def ping(self) -> None:
        checks = (
            is_healthy(channel, timeout_seconds=_PING_SECONDS)
            for channel in self._channels.values()
        )
        if not any(await asyncio.gather(*checks)):
            raise _nobody(f"no planner at {', '.join(self._addresses)} says that it is healthy")

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close()

    async def _ask(
        self, call: "Callable[[PlannerServiceAsyncStub], Awaitable[AnswerT]]"
    ) -> AnswerT:
        """Call the planners one after another until one answers, in a few rounds."""
        for pause_seconds in (*self._pauses_seconds, None):
            for address in list(self._addresses):
                try:
                    answer = await self._ask_one(address, call)
                except UnavailableError as error:
                    last = error
                else:
                    self._prefer(address)
                    return answer
            if pause_seconds is not None:
                await asyncio.sleep(pause_seconds * (1 + self._random_share()))
        raise _nobody(f"no planner answers: {last}") from last

    async def _ask_one(
        self, address: str, call: "Callable[[PlannerServiceAsyncStub], Awaitable[AnswerT]]"
    ) -> AnswerT:
        stub = PlannerServiceStub(self._channels[address])
        with rpc_errors(f"planner at {address}"):
            return await call(stub)

    def _prefer(self, address: str) -> None:
        self._addresses.remove(address)
        self._addresses.insert(0, address)


def _nobody(message: str) -> PlanariaError:
    return PlanariaError(ErrorReason.UNAVAILABLE, message, {"part": "planner"})


def _reconfigure_request(query: PlanQuery) -> pb.ReconfigureRequest:
    return pb.ReconfigureRequest(
        problem=_problem(query.problem),
        nodes=[to_message(node, pb.PlanNode) for node in query.nodes],
        current=None if query.current is None else to_message(query.current, plan_pb2.Plan),
        holdings=[to_message(holding, pb.Holding) for holding in query.holdings],
        horizon_seconds=query.horizon_seconds,
    )


def _next_plan(answer: pb.ReconfigureResponse) -> PlanAnswer:
    return PlanAnswer(
        plan=from_message(answer.plan, Plan),
        reason=answer.reason,
        min_nodes=answer.min_nodes,
        copies=tuple(from_message(copy, LayerCopy) for copy in answer.copies),
    )


def _problem(problem: Problem) -> pb.Problem:
    return pb.Problem(
        profile=to_message(problem.profile, profile_pb2.ModelProfile),
        num_microbatches=problem.num_microbatches,
        fault_tolerance=problem.fault_tolerance,
        min_nodes_per_pipeline=problem.min_nodes_per_pipeline,
        max_stage_accelerators=1,  # engines do not run a stage together yet
    )
