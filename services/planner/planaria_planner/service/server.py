"""The planner's gRPC server: messages in, pure functions, messages out."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypedDict

import grpc

from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria.api.planner.v1 import planner_service_pb2_grpc as pb_grpc
from planaria_common.grpcserver import GrpcServer
from planaria_common.logging import get_logger
from planaria_planner.changes.candidates import RunningPipeline
from planaria_planner.changes.contingency_plans import contingency_plans
from planaria_planner.changes.inventory import Holdings
from planaria_planner.changes.reconfigure import reconfigure
from planaria_planner.plans.explain import explain, in_words
from planaria_planner.plans.instantiate import instantiate
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Problem
from planaria_planner.service import convert
from planaria_planner.templates.templates import generate_templates

SERVICE = pb.DESCRIPTOR.services_by_name["PlannerService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


class PlannerServicer(pb_grpc.PlannerServiceServicer):
    """Each call is computed in a thread: a long plan does not hold up the health checks."""

    async def GenerateTemplates(  # noqa: N802 - named by gRPC
        self, request: pb.GenerateTemplatesRequest, _context: Context
    ) -> pb.GenerateTemplatesResponse:
        return await asyncio.to_thread(_generate_templates, request)

    async def Instantiate(  # noqa: N802
        self, request: pb.InstantiateRequest, _context: Context
    ) -> pb.InstantiateResponse:
        return await asyncio.to_thread(_instantiate, request)

    async def Reconfigure(  # noqa: N802
        self, request: pb.ReconfigureRequest, _context: Context
    ) -> pb.ReconfigureResponse:
        return await asyncio.to_thread(_reconfigure, request)

    async def PlanContingencies(  # noqa: N802
        self, request: pb.PlanContingenciesRequest, _context: Context
    ) -> AsyncIterator[pb.PlanContingenciesResponse]:
        problem, change = _change(request.present)
        outcomes = contingency_plans(problem, **change)
        while (one := await asyncio.to_thread(next, outcomes, None)) is not None:
            yield convert.contingency_message(*one)


def planner_server(*, host: str, port: int, token: str | None) -> GrpcServer:
    """Return a server of the planner, not yet started."""
    return GrpcServer(
        part="planner",
        services={
            SERVICE: lambda server: pb_grpc.add_PlannerServiceServicer_to_server(
                PlannerServicer(), server
            )
        },
        host=host,
        port=port,
        token=token,
    )


def _generate_templates(request: pb.GenerateTemplatesRequest) -> pb.GenerateTemplatesResponse:
    problem = convert.problem_from(request.problem)
    profile = problem.profile
    limits = (request.max_nodes, *[0] * (len(profile.hardware.node_kinds) - 1))
    found = generate_templates(
        profile,
        limits,
        min_nodes=problem.min_nodes_per_pipeline,
        max_width=problem.max_stage_accelerators,
    )
    return pb.GenerateTemplatesResponse(min_nodes=found.min_nodes)


def _instantiate(request: pb.InstantiateRequest) -> pb.InstantiateResponse:
    problem = convert.problem_from(request.problem)
    answer = instantiate(problem, convert.nodes_from(problem.profile, request.nodes))
    return pb.InstantiateResponse(
        plan=convert.plan_message(answer.plan),
        reason=in_words(answer, explain(answer)),
        min_nodes=answer.templates.min_nodes,
    )


def _reconfigure(request: pb.ReconfigureRequest) -> pb.ReconfigureResponse:
    problem, change = _change(request)
    answer = reconfigure(problem, **change)
    get_logger("planner").info("reconfigured", reason=answer.reason)
    return convert.reconfigure_message(answer)


class _Change(TypedDict):
    """What a request says of a change, by the names that the functions have for it."""

    nodes: tuple[Node, ...]
    running: tuple[RunningPipeline, ...]
    holdings: Holdings
    horizon_seconds: float


def _change(request: pb.ReconfigureRequest) -> tuple[Problem, _Change]:
    problem = convert.problem_from(request.problem)
    return problem, _Change(
        nodes=convert.nodes_from(problem.profile, request.nodes),
        running=convert.running_from(request.current),
        holdings=convert.holdings_from(request.holdings),
        horizon_seconds=request.horizon_seconds,
    )
