"""What stands between the wire and every servicer: the credential check and the error boundary."""

import asyncio
import hmac
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import grpc
from structlog.typing import FilteringBoundLogger

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.grpcwire import (
    DETAILS_KEY,
    PUBLIC_METHOD_PREFIXES,
    encode_error,
    grpc_code,
)

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Guard = Callable[[str, Context], AbstractAsyncContextManager[None]]
"""Given a method's name and a call's context, what to do around the call."""


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call of every kind inside a guard."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: gRPC answers UNIMPLEMENTED
            return None
        return _guarded(handler, handler_call_details.method, self._guard)


def authentication(token: str) -> Guard:
    """Refuse calls without `authorization: Bearer <token>` in their metadata."""
    expected = f"Bearer {token}".encode()

    @asynccontextmanager
    async def guard(method: str, context: Context) -> AsyncIterator[None]:
        if not method.startswith(PUBLIC_METHOD_PREFIXES):
            given = dict(context.invocation_metadata() or ()).get("authorization", "")
            given_bytes = given if isinstance(given, bytes) else given.encode()
            if not hmac.compare_digest(given_bytes, expected):
                raise PlanariaError(
                    ErrorReason.UNAUTHENTICATED,
                    "the token is wrong: use the one in the cluster's token file"
                    if given
                    else "a token is needed: send `authorization: Bearer TOKEN`",
                )
        yield

    return guard


def error_boundary(part: str, log: FilteringBoundLogger) -> Guard:
    """Send PlanariaErrors as they are; log every other exception and send a bare INTERNAL."""

    @asynccontextmanager
    async def guard(method: str, context: Context) -> AsyncIterator[None]:
        try:
            yield
        except PlanariaError as error:
            await _abort(context, error)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("rpc_failed", method=method)
            message = f"the {part} has a defect: its log says more"
            await _abort(context, PlanariaError(ErrorReason.INTERNAL, message, {"part": part}))

    return guard


async def _abort(context: Context, error: PlanariaError) -> None:
    await context.abort(
        grpc_code(error), error.message, trailing_metadata=((DETAILS_KEY, encode_error(error)),)
    )


def _guarded(handler: Handler, method: str, guard: Guard) -> Handler:
    """Return the handler with its behaviour inside the guard; its kind stays what it is."""
    behaviour: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )

    async def one_response(request: Any, context: Context) -> Any:
        async with guard(method, context):
            return await behaviour(request, context)

    async def many_responses(request: Any, context: Context) -> AsyncIterator[Any]:
        async with guard(method, context):
            responses = behaviour(request, context)
            if inspect.isawaitable(responses):  # a servicer that calls context.write itself
                await responses
                return
            async for response in responses:
                yield response

    make: Any
    if handler.request_streaming:
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
    else:
        make = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
    wrapped: Handler = make(
        many_responses if handler.response_streaming else one_response,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
    return wrapped
