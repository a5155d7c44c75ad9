"""The frame around every servicer and stub, over a real loopback connection."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from planaria_common import grpcclient
from planaria_common.errors import (
    AccessError,
    ConflictError,
    ErrorReason,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PlanariaError,
    UnavailableError,
)
from planaria_common.grpcclient import bearer, open_channel, rpc_errors
from planaria_common.grpcserver import GrpcServer
from planaria_common.grpcwire import is_healthy
from planaria_common.logging import configure_logging, drain_logs
from support.wire import Wire

SERVICE = "test.v1.EchoService"
TOKEN = "right"
WIRE: dict[str, Any] = {
    "request_deserializer": StringValue.FromString,
    "response_serializer": StringValue.SerializeToString,
}
CLIENT_WIRE: dict[str, Any] = {
    "request_serializer": StringValue.SerializeToString,
    "response_deserializer": StringValue.FromString,
}


@dataclass
class EchoService:
    failures: list[grpc.StatusCode] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)

    async def echo(self, request: StringValue, context: Any) -> StringValue:
        self.deadlines.append(context.time_remaining())
        if self.failures:
            await context.abort(self.failures.pop(0), "not now")
        _misbehave(request)
        return request

    async def echo_each(self, requests: Any, _context: Any) -> AsyncIterator[StringValue]:
        async for request in requests:
            _misbehave(request)
            yield request

    async def echo_each_by_writing(self, requests: Any, context: Any) -> None:
        async for request in requests:
            _misbehave(request)
            await context.write(request)

    def register(self, server: grpc.aio.Server) -> None:
        stream: Any = grpc.stream_stream_rpc_method_handler
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo, **WIRE),
            "EchoEach": stream(self.echo_each, **WIRE),
            "EchoEachByWriting": stream(self.echo_each_by_writing, **WIRE),
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((generic,))


def _misbehave(request: StringValue) -> None:
    if request.value == "planaria error":
        raise PlanariaError(ErrorReason.NODE_NOT_FOUND, "no node n", {"node_id": "n"})
    if request.value == "defect":
        password = "hunter2"
        raise KeyError(f"no user of {len(password)} letters")


@pytest.fixture
def service() -> EchoService:
    return EchoService()


@pytest.fixture
async def server(service: EchoService) -> AsyncIterator[GrpcServer]:
    server = GrpcServer(
        part="tester",
        services={SERVICE: service.register},
        host="127.0.0.1",
        port=0,
        token=TOKEN,
    )
    await server.start()
    yield server
    await server.stop(grace_seconds=0)


async def call(server: GrpcServer, value: str, token: str | None = TOKEN) -> str:
    async with open_channel(server.address, token=token) as channel:
        echo = channel.unary_unary(f"/{SERVICE}/Echo", **CLIENT_WIRE)
        with rpc_errors("tester"):
            answer: StringValue = await echo(StringValue(value=value))
        return answer.value


async def stream(server: GrpcServer, method: str, values: list[str], token: str) -> list[str]:
    async with open_channel(server.address) as channel:
        each = channel.stream_stream(f"/{SERVICE}/{method}", **CLIENT_WIRE)
        requests = iter([StringValue(value=value) for value in values])
        with rpc_errors("tester"):
            answers = each(requests, metadata=bearer(token))
            return [answer.value async for answer in answers]


async def test_the_right_token_opens(server: GrpcServer) -> None:
    assert await call(server, "hello") == "hello"


@pytest.mark.parametrize("method", ["EchoEach", "EchoEachByWriting"])
async def test_streams_pass_in_both_styles(server: GrpcServer, method: str) -> None:
    assert await stream(server, method, ["a", "b"], TOKEN) == ["a", "b"]


@pytest.mark.parametrize("token", ["wrong", "", None])
async def test_no_call_passes_without_the_token(server: GrpcServer, token: str | None) -> None:
    with pytest.raises(AccessError, match="token"):
        await call(server, "hello", token)


async def test_health_needs_no_token_and_turns_with_readiness(server: GrpcServer) -> None:
    async with open_channel(server.address) as channel:
        assert await is_healthy(channel, timeout_seconds=5)
        await server.set_ready(False)
        assert not await is_healthy(channel, timeout_seconds=5)


async def test_a_planaria_error_arrives_as_the_same_exception(server: GrpcServer) -> None:
    with pytest.raises(NotFoundError, match="no node n") as caught:
        await call(server, "planaria error")
    assert caught.value.metadata == {"node_id": "n"}


@pytest.mark.parametrize("method", ["EchoEach", "EchoEachByWriting"])
async def test_a_planaria_error_ends_a_stream(server: GrpcServer, method: str) -> None:
    with pytest.raises(NotFoundError, match="no node n"):
        await stream(server, method, ["planaria error"], TOKEN)


async def test_a_defect_is_logged_here_and_not_shown_there(server: GrpcServer) -> None:
    log = StringIO()
    configure_logging(component="tester", log_format="json", stream=log)
    with pytest.raises(InternalError) as caught:
        await call(server, "defect")
    assert "letters" not in str(caught.value)
    drain_logs(30)
    line = json.loads(log.getvalue())
    assert line["event"] == "rpc_failed"
    assert "no user of 7 letters" in line["exception"][0]["exc_value"]
    assert "hunter2" not in log.getvalue(), "values of variables must not be logged"


async def test_a_failed_call_is_not_tried_again(server: GrpcServer, service: EchoService) -> None:
    service.failures = [grpc.StatusCode.UNAVAILABLE]
    with pytest.raises(UnavailableError, match="tester does not answer"):
        await call(server, "hello")
    assert service.failures == []


async def test_every_unary_call_has_a_deadline(server: GrpcServer, service: EchoService) -> None:
    await call(server, "hello")
    [remaining] = service.deadlines
    assert remaining is not None
    assert 0 < remaining < 60


async def test_an_unknown_call_says_that_versions_differ(server: GrpcServer) -> None:
    async with open_channel(server.address, token=TOKEN) as channel:
        unknown = channel.unary_unary(f"/{SERVICE}/Unknown", **CLIENT_WIRE)
        with pytest.raises(ConflictError, match="another version"), rpc_errors("tester"):
            await unknown(StringValue())


async def test_a_port_in_use_is_named_with_its_option(server: GrpcServer) -> None:
    second = GrpcServer(
        part="tester",
        services={},
        host="127.0.0.1",
        port=server.port,
        token=None,
        port_flag="--grpc-port",
    )
    with pytest.raises(InvalidArgumentError) as caught:
        await second.start()
    assert str(caught.value) == (
        f"port {server.port} is in use: choose another with --grpc-port, or 0 for a free one"
    )


async def test_no_open_port_beyond_loopback() -> None:
    """Without a token, nobody but this machine may connect."""
    everywhere = "0.0.0.0"  # noqa: S104 - to see it refused
    server = GrpcServer(part="tester", services={}, host=everywhere, port=0, token=None)
    with pytest.raises(InvalidArgumentError, match=r"--host 0\.0\.0\.0: .* token is needed"):
        await server.start()


async def first_answer(channel: grpc.aio.Channel) -> Any:
    """Open a stream and get one answer; returns the stream."""
    call = channel.stream_stream(f"/{SERVICE}/EchoEach", **CLIENT_WIRE)(metadata=bearer(TOKEN))
    await call.write(StringValue(value="a"))
    assert await call.read() == StringValue(value="a")
    return call


async def test_a_stream_ends_when_its_peer_is_gone_without_a_word(
    server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the keepalive. No packet says that a machine is gone."""
    monkeypatch.setattr(grpcclient, "KEEPALIVE_SECONDS", 0.1)
    host, _, port = server.address.rpartition(":")
    with contextlib.closing(Wire(host, int(port))) as wire:
        async with open_channel(f"127.0.0.1:{wire.port}") as channel:
            call = await first_answer(channel)
            wire.fall_silent()
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await asyncio.wait_for(call.read(), 20)


@pytest.mark.slow
async def test_a_server_permits_pings(server: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it ends a connection at the third without data: they are too many. gRPC sends one
    a second at most."""
    monkeypatch.setattr(grpcclient, "KEEPALIVE_SECONDS", 0.02)
    async with open_channel(server.address) as channel:
        call = await first_answer(channel)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call.read(), 8)
