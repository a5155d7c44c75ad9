"""A gRPC server as every service runs it: health, reflection, credentials, errors, a clean end."""

from collections.abc import Callable, Mapping

import grpc

from planaria_common.grpcinterceptors import GuardInterceptor, authentication, error_boundary
from planaria_common.grpcwire import Health, enable_reflection
from planaria_common.logging import get_logger
from planaria_common.netutil import require_credentials_beyond_loopback, require_free_port

MAX_MESSAGE_BYTES = 64 * 2**20

Register = Callable[[grpc.aio.Server], None]
"""Adds one servicer to a server: a generated `add_XServicer_to_server` with its servicer."""


class GrpcServer:
    """One listening gRPC server.

    Args:
        part: the service's name, for errors and logs.
        services: full proto service name -> what registers its servicer.
        host: the address to listen on; beyond loopback only with a token.
        port: 0 picks a free one.
        token: what every call but health and reflection must carry; None asks for nothing.
        port_flag: the option that chooses the port, named when the port is in use.
    """

    def __init__(
        self,
        *,
        part: str,
        services: Mapping[str, Register],
        host: str,
        port: int,
        token: str | None,
        port_flag: str = "--port",
    ) -> None:
        self._log = get_logger("grpc")
        self._host = host
        self._requested_port = port
        self._token = token
        self._port_flag = port_flag
        self._health = Health(services)
        self._server = self._build(part, services)
        self.port = 0

    def _build(self, part: str, services: Mapping[str, Register]) -> grpc.aio.Server:
        guards = [error_boundary(part, self._log)]
        if self._token:
            guards.append(authentication(self._token))
        server = grpc.aio.server(
            interceptors=[GuardInterceptor(guard) for guard in guards],
            options=[
                # Otherwise two servers share a port, and each gets half of the calls.
                ("grpc.so_reuseport", 0),
                # Clients may ping as often as they like; by default few pings end a connection.
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ],
        )
        for register in services.values():
            register(server)
        self._health.register(server)
        enable_reflection(server, services)
        return server

    @property
    def address(self) -> str:
        """`HOST:PORT`, once started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    async def start(self) -> None:
        """Listen, and say that all services are ready.

        Raises:
            InvalidArgumentError: the port is in use, or open to others without a token.
        """
        require_credentials_beyond_loopback(self._host, self._token, flag="--host")
        require_free_port(self._host, self._requested_port, flag=self._port_flag)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.port = self._server.add_insecure_port(f"{host}:{self._requested_port}")
        await self._server.start()
        await self._health.set_ready(True)

    async def set_ready(self, ready: bool) -> None:
        """Tell load balancers whether to send new calls here."""
        await self._health.set_ready(ready)

    async def stop(self, *, grace_seconds: float) -> None:
        """Turn not-ready, refuse new calls, and give those under way some time to finish."""
        await self._health.set_ready(False)
        await self._server.stop(grace_seconds)
