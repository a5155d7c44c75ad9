"""One error, one class: whichever transport it came by."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import planaria
from planaria import rpc
from planaria.api.coordinator.v1 import job_service_pb2, job_service_pb2_grpc
from planaria.errors import from_problem
from planaria_common.errors import ERRORS, ErrorReason, JobFailedError, PlanariaError
from planaria_common.grpcserver import GrpcServer

TOKEN = "the-token"
REQUEST_REASONS = [reason for reason in ErrorReason if ERRORS[reason].family is not JobFailedError]
"""Reasons that a request can fail with; the others are why a job failed."""


class Jobs(job_service_pb2_grpc.JobServiceServicer):
    async def GetJob(
        self,
        request: job_service_pb2.GetJobRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> job_service_pb2.GetJobResponse:
        raise PlanariaError(ErrorReason(request.job_id), "a sentence", {"part": "tester"})


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    server = GrpcServer(
        part="tester",
        services={
            "planaria.api.coordinator.v1.JobService": lambda grpc_server: (
                job_service_pb2_grpc.add_JobServiceServicer_to_server(Jobs(), grpc_server)  # type: ignore[abstract]
            )
        },
        host="127.0.0.1",
        port=0,
        token=TOKEN,
    )
    await server.start()
    yield server
    await server.stop(grace_seconds=0)


async def fail(server: GrpcServer, reason: str, token: str = TOKEN) -> planaria.PlanariaError:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        request = job_service_pb2.GetJobRequest(job_id=reason)
        with pytest.raises(planaria.PlanariaError) as caught, rpc.errors():
            await stub.GetJob(request, metadata=rpc.bearer(token))
        return caught.value


@pytest.mark.parametrize("reason", REQUEST_REASONS)
async def test_grpc_and_rest_raise_the_same(server: GrpcServer, reason: ErrorReason) -> None:
    by_grpc = await fail(server, reason)
    entry = ERRORS[reason]
    body = {"reason": reason.value, "detail": "a sentence", "metadata": {"part": "tester"}}
    by_rest = from_problem(entry.http_status, body)
    assert type(by_grpc) is type(by_rest)
    assert type(by_grpc).__name__ == entry.family.__name__
    assert (by_grpc.reason, by_grpc.message, by_grpc.metadata) == (
        by_rest.reason,
        by_rest.message,
        by_rest.metadata,
    )


async def test_a_wrong_token_is_an_access_error(server: GrpcServer) -> None:
    assert isinstance(await fail(server, "", token="wrong"), planaria.AccessError)


async def test_an_unreachable_server_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        with pytest.raises(planaria.UnavailableError) as caught, rpc.errors():
            await stub.GetJob(job_service_pb2.GetJobRequest())
    assert caught.value.reason == "UNAVAILABLE"
