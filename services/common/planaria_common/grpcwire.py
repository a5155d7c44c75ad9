"""The only module that touches google.rpc, grpc.health and grpc.reflection: they ship no types.

Errors travel as google.rpc.Status with one ErrorInfo (AIP-193) in the trailing metadata.
"""

from collections.abc import Iterable

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from planaria_common.errors import ERROR_DOMAIN, ERRORS, ErrorReason, PlanariaError

_REASONS = frozenset(ErrorReason.__members__)
DETAILS_KEY = "grpc-status-details-bin"

PUBLIC_METHOD_PREFIXES = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Methods that tell nothing secret and need no credential: probes have none."""


def grpc_code(error: PlanariaError) -> grpc.StatusCode:
    """Return the gRPC code of an error's reason."""
    return grpc.StatusCode[ERRORS[error.reason].grpc_code]


def encode_error(error: PlanariaError) -> bytes:
    """Return the serialized google.rpc.Status of an error."""
    info = error_details_pb2.ErrorInfo(
        reason=error.reason.value, domain=ERROR_DOMAIN, metadata=error.metadata
    )
    detail = any_pb2.Any()
    detail.Pack(info)
    code: int = grpc_code(error).value[0]
    status = status_pb2.Status(code=code, message=error.message, details=[detail])
    return bytes(status.SerializeToString())


def decode_error(details: bytes) -> PlanariaError | None:
    """Read a serialized google.rpc.Status; None when it holds no error that we know."""
    status = status_pb2.Status.FromString(details)
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN and info.reason in _REASONS:
            return PlanariaError(ErrorReason(info.reason), status.message, dict(info.metadata))
    return None


class Health:
    """The grpc.health.v1 service of a server: all its services are ready, or none."""

    def __init__(self, service_names: Iterable[str]) -> None:
        self._names = ("", *service_names)
        self._servicer = HealthServicer()

    def register(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_ready(self, ready: bool) -> None:
        state = health_pb2.HealthCheckResponse.ServingStatus
        for name in self._names:
            await self._servicer.set(name, state.SERVING if ready else state.NOT_SERVING)


async def is_healthy(channel: grpc.aio.Channel, *, timeout_seconds: float) -> bool:
    """Ask a server's health service whether it is ready; False when it does not answer."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
    except grpc.aio.AioRpcError:
        return False
    serving: bool = answer.status == health_pb2.HealthCheckResponse.SERVING
    return serving


def enable_reflection(server: grpc.aio.Server, service_names: Iterable[str]) -> None:
    """Let tools such as grpcurl list the services."""
    names = (*service_names, "grpc.health.v1.Health", reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
