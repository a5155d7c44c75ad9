"""WorkerService: the sessions of agents."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from planaria.api.worker.v1.worker_service_pb2 import ReportsStored as ProtoReportsStored
from planaria.api.worker.v1.worker_service_pb2 import SessionRequest, SessionResponse
from planaria.api.worker.v1.worker_service_pb2_grpc import WorkerServiceServicer
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.agents.agent_messages import Hello, ReportsStored
from planaria_coordinator.application.agents.agent_session import AgentSession
from planaria_coordinator.application.agents.sessions import Sessions
from planaria_coordinator.entrypoints.grpc import from_agent, to_agent

HELLO_TIMEOUT_SECONDS = 10.0


class WorkerServicer(WorkerServiceServicer):
    """Serves `planaria.api.worker.v1.WorkerService`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._plans = to_agent.PlanMessages()

    async def Session(  # noqa: N802 - the name in the protocol
        self,
        request_iterator: AsyncIterator[SessionRequest],
        context: grpc.aio.ServicerContext[Any, Any],  # noqa: ARG002 - the signature is gRPC's
    ) -> AsyncIterator[SessionResponse]:
        """Hold a node's session until either side ends it."""
        session = await self._sessions.open(await _hello(request_iterator))
        reading = asyncio.create_task(_read(request_iterator, session))
        try:
            yield SessionResponse(welcome=to_agent.welcome_message(session.welcome))
            async for response in _responses(session, reading, self._plans):
                yield response
        finally:
            reading.cancel()
            session.close()
            await asyncio.gather(reading, return_exceptions=True)


async def _hello(requests: AsyncIterator[SessionRequest]) -> Hello:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
            first = await anext(requests, None)
    except TimeoutError:
        first = None
    if first is None or not first.HasField("hello"):
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            "the first message of a session must be a hello",
            {"field": "hello", "expected": "first"},
        )
    return from_agent.hello_of(first.hello)


async def _responses(
    session: AgentSession, reading: asyncio.Task[None], plans: to_agent.PlanMessages
) -> AsyncIterator[SessionResponse]:
    """Yield what is to be sent until the agent ends the stream or another session replaces it."""
    while True:
        upcoming = asyncio.ensure_future(session.next_message())
        try:
            await asyncio.wait({upcoming, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not upcoming.done():
                upcoming.cancel()
        if reading.done():
            reading.result()  # a message that could not be understood ends the session loudly
            return
        message = upcoming.result()
        if message is None:
            return
        if isinstance(message, ReportsStored):
            stored = ProtoReportsStored(report_number=message.report_number)
            yield SessionResponse(reports_stored=stored)
        else:
            yield SessionResponse(directive=to_agent.directive_message(message, plans))


async def _read(requests: AsyncIterator[SessionRequest], session: AgentSession) -> None:
    async for request in requests:
        match request.WhichOneof("message"):
            case "heartbeat":
                session.heartbeat(
                    tuple(from_agent.snapshot_of(engine) for engine in request.heartbeat.engines)
                )
            case "result":
                session.result(from_agent.result_of(request.result))
            case "engine_exited":
                session.engine_exited(from_agent.exited_of(request.engine_exited))
            case "peer_lost":
                session.peer_lost(from_agent.peer_lost_of(request.peer_lost))
            case "engine_fault":
                session.engine_fault(from_agent.fault_of(request.engine_fault))
            case "step_report":
                session.step_report(from_agent.step_report_of(request.step_report))
            case "checkpoint_report":
                session.checkpoint_report(
                    from_agent.checkpoint_report_of(request.checkpoint_report)
                )
            case "log_lines":
                session.log_lines(from_agent.log_lines_of(request.log_lines))
            case _:
                pass  # a newer agent may say more than we understand
        if request.report_number:
            session.note_report(request.report_number)
