"""gRPC for those who use the generated stubs, such as custom schedulers: token and errors.

channel = grpc.insecure_channel(client.info().grpc_endpoints[0])
with planaria.rpc.errors():
    JobServiceStub(channel).GetJob(request, metadata=planaria.rpc.bearer(token))
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc
from google.rpc import error_details_pb2, status_pb2

from planaria.errors import (
    AccessError,
    ConflictError,
    InternalError,
    InvalidArgumentError,
    JobFailedError,
    NotFoundError,
    PlanariaError,
    UnavailableError,
)

_DETAILS_KEY = "grpc-status-details-bin"

_FAMILY_OF_CODE: Mapping[grpc.StatusCode, type[PlanariaError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
    grpc.StatusCode.ABORTED: ConflictError,
    grpc.StatusCode.DATA_LOSS: JobFailedError,
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
    grpc.StatusCode.PERMISSION_DENIED: AccessError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
}


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Return the call metadata that carries a token."""
    return (("authorization", f"Bearer {token}"),)


@contextmanager
def errors() -> Iterator[None]:
    """Raise what the REST client would raise when a call fails."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error


def from_rpc_error(error: grpc.RpcError) -> PlanariaError:
    """Return the exception for a failed call, of grpc or of grpc.aio."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return InternalError(str(error), reason="INTERNAL")
    family = _FAMILY_OF_CODE.get(error.code(), InternalError)
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status.FromString(value)
            info = error_details_pb2.ErrorInfo()
            if any(detail.Unpack(info) for detail in status.details):
                return family(status.message, reason=info.reason, metadata=dict(info.metadata))
    return family(error.details() or str(error.code()), reason=error.code().name)
