"""Runs the HTTP application inside the coordinator's event loop."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from planaria_common.netutil import require_free_port

_BACKLOG: Final = 2048


class HttpServer:
    """One listening HTTP server.

    Args:
        app: what answers.
        host: the address to listen on.
        port: 0 picks a free one.
        port_flag: the option that chooses the port, named when the port is in use.
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int, port_flag: str) -> None:
        self._app = app
        self._host = host
        self._requested_port = port
        self._port_flag = port_flag
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            InvalidArgumentError: the port is in use, or the address is not of this machine.
        """
        require_free_port(self._host, self._requested_port, flag=self._port_flag)
        listener = _listen(self._host, self._requested_port)
        self.port = listener.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                self._app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        await self._server.listening.wait()

    async def wait_until_ended(self) -> None:
        """Return, or raise, when it serves no more."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def stop(self, *, grace_seconds: float) -> None:
        """Accept no more connections, and give requests under way some time to finish."""
        if self._server is None or self._serving is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_seconds))
        self._server.should_exit = True
        await self._serving


class _Server(uvicorn.Server):
    """A server without signal handlers: the coordinator has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listening.set()


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
