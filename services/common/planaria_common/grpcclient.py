"""A gRPC channel as every part opens it: token, deadline, and errors as exceptions.

channel = open_channel(address, token=token)
stub = PlannerServiceStub(channel)
with rpc_errors(f"planner at {address}"):
    plan = await stub.Instantiate(request)
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.grpcserver import MAX_MESSAGE_BYTES
from planaria_common.grpcwire import DETAILS_KEY, decode_error

DEFAULT_DEADLINE_SECONDS = 10.0
KEEPALIVE_SECONDS = 5.0
"""Who was silent for so long is pinged; without an answer for as long again, calls and streams end:
the machine is gone, and nothing else would say so for minutes."""
_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that carries a token: streams take it as `metadata=bearer(token)`."""
    return (("authorization", f"Bearer {token}"),) if token else ()


def open_channel(
    target: str,
    *,
    token: str | None = None,
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
) -> grpc.aio.Channel:
    """Open a channel; it connects by itself, again and again.

    Args:
        target: HOST:PORT, or any gRPC name (`dns:///planner:7070` balances over all addresses).
        token: sent with every unary call; streams pass `bearer(token)` themselves.
        deadline_seconds: of every unary call that brings none.
    """
    return grpc.aio.insecure_channel(
        target,
        interceptors=[_UnaryDefaults(token, deadline_seconds)],
        options=[
            ("grpc.service_config", _SERVICE_CONFIG),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            # gRPC's own pauses grow to two minutes; a restarted peer should be found at once.
            ("grpc.initial_reconnect_backoff_ms", 100),
            # Also what a connection may take to be made: a busy server, or one far away, is slow.
            ("grpc.min_reconnect_backoff_ms", 2_000),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.keepalive_time_ms", round(KEEPALIVE_SECONDS * 1_000)),
            ("grpc.keepalive_timeout_ms", round(KEEPALIVE_SECONDS * 1_000)),
            # Without it every ping may take a minute, whatever the one before says.
            ("grpc.http2.ping_timeout_ms", round(KEEPALIVE_SECONDS * 1_000)),
            # Also where no call is under way, and however long nothing else is sent.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ],
    )


@contextmanager
def rpc_errors(peer: str) -> Iterator[None]:
    """Turn a failed call into the PlanariaError that the peer raised.

    Args:
        peer: whom we call, for people: "planner at 127.0.0.1:7070".
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise to_planaria_error(error, peer) from error


def to_planaria_error(error: grpc.aio.AioRpcError, peer: str) -> PlanariaError:
    """Return what went wrong: the ErrorInfo the peer sent, or else what the code says."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            sent = decode_error(value)
            if sent is not None:
                return sent
    reason, problem = _BY_CODE.get(error.code(), (ErrorReason.INTERNAL, "failed"))
    message = f"{peer} {problem}: {error.details()}"
    return PlanariaError(reason, message, {"part": peer})


_BY_CODE = {
    grpc.StatusCode.UNAVAILABLE: (ErrorReason.UNAVAILABLE, "does not answer"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (ErrorReason.UNAVAILABLE, "did not answer in time"),
    grpc.StatusCode.UNAUTHENTICATED: (ErrorReason.UNAUTHENTICATED, "refused the token"),
    grpc.StatusCode.INVALID_ARGUMENT: (ErrorReason.INVALID_ARGUMENT, "refused the request"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        ErrorReason.MESSAGE_TOO_LARGE,
        "or this side refused the message",
    ),
    grpc.StatusCode.UNIMPLEMENTED: (
        ErrorReason.VERSION_MISMATCH,
        "does not know this call, so it is of another version",
    ),
}


class _UnaryDefaults(grpc.aio.UnaryUnaryClientInterceptor):
    """Adds the token, and the deadline where the caller gave none."""

    def __init__(self, token: str | None, deadline_seconds: float) -> None:
        self._credential = bearer(token)
        self._deadline_seconds = deadline_seconds

    async def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Any],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        given = client_call_details
        metadata = grpc.aio.Metadata(*(given.metadata or ()), *self._credential)
        details = grpc.aio.ClientCallDetails(
            method=given.method,
            timeout=self._deadline_seconds if given.timeout is None else given.timeout,
            metadata=metadata,
            credentials=given.credentials,
            wait_for_ready=given.wait_for_ready,
        )
        return await continuation(details, request)
