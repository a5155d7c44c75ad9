"""The coordinator's side of sessions, as a test drives it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.worker_service_pb2 import (
    HeartbeatReceived,
    Hello,
    ReportsStored,
    SessionRequest,
    SessionResponse,
    Welcome,
)
from planaria.api.worker.v1.worker_service_pb2_grpc import (
    WorkerServiceServicer,
    add_WorkerServiceServicer_to_server,
)

TIMEOUT_SECONDS = 60.0


class FakeWorkerService(WorkerServiceServicer):
    """Accepts one agent at a time; what it says waits in queues."""

    def __init__(
        self, refusal: tuple[grpc.StatusCode, str] | None = None, *, epoch: int = 1
    ) -> None:
        self.answers = True
        """Whether heartbeats are answered."""
        self.heartbeat_interval_seconds = 1
        self._epoch = epoch
        self._writing = asyncio.Lock()
        self.hellos: asyncio.Queue[Hello] = asyncio.Queue()
        self.messages: asyncio.Queue[SessionRequest] = asyncio.Queue()
        self._refusal = refusal
        self._cut = asyncio.Event()
        self._context: grpc.aio.ServicerContext[Any, Any] | None = None

    async def Session(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[SessionRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        first = await anext(request_iterator)
        if self._refusal is not None:
            await context.abort(*self._refusal)
        welcome = Welcome(coordinator_id="fake", epoch=self._epoch)
        welcome.heartbeat_interval.FromSeconds(self.heartbeat_interval_seconds)
        welcome.agent_lease.FromSeconds(10)
        await context.write(SessionResponse(welcome=welcome))
        self._context = context
        self.hellos.put_nowait(first.hello)
        self._cut = asyncio.Event()
        reading = asyncio.create_task(self._read(request_iterator, context))
        cut = asyncio.create_task(self._cut.wait())
        try:
            await asyncio.wait([reading, cut], return_when=asyncio.FIRST_COMPLETED)
        finally:
            cut.cancel()
            reading.cancel()
            await asyncio.gather(cut, reading, return_exceptions=True)

    async def _read(
        self,
        request_iterator: AsyncIterator[SessionRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        async for message in request_iterator:
            self.messages.put_nowait(message)
            if message.HasField("heartbeat") and self.answers:
                async with self._writing:
                    await context.write(SessionResponse(heartbeat_received=HeartbeatReceived()))

    def cut(self) -> None:
        """End the session."""
        self._cut.set()

    async def send(self, directive: Directive) -> None:
        assert self._context is not None
        directive.epoch = self._epoch
        async with self._writing:
            await self._context.write(SessionResponse(directive=directive))

    async def acknowledge(self, report_number: int) -> None:
        assert self._context is not None
        stored = ReportsStored(report_number=report_number)
        async with self._writing:
            await self._context.write(SessionResponse(reports_stored=stored))

    async def ask(self, **question: Any) -> None:
        """Send an echo or a probe."""
        assert self._context is not None
        async with self._writing:
            await self._context.write(SessionResponse(**question))

    async def hello(self) -> Hello:
        return await asyncio.wait_for(self.hellos.get(), TIMEOUT_SECONDS)

    async def next(self, kind: str) -> Any:
        """Return the next message of a kind, dropping the others before it."""
        return getattr(await self.next_request(kind), kind)

    async def next_request(self, *kinds: str) -> SessionRequest:
        """Return the next message of these kinds as it came, dropping the others before it."""
        async with asyncio.timeout(TIMEOUT_SECONDS):  # heartbeats come for ever
            while (message := await self.messages.get()).WhichOneof("message") not in kinds:
                pass
        return message


async def serve(coordinator: FakeWorkerService, port: int = 0) -> tuple[grpc.aio.Server, int]:
    """Serve on loopback; returns the server and its port."""
    server = grpc.aio.server()
    add_WorkerServiceServicer_to_server(coordinator, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port
