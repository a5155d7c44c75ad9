"""WorkerService: the sessions of agents."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from planaria.api.worker.v1 import worker_service_pb2
from planaria.api.worker.v1.worker_service_pb2 import Echo as ProtoEcho
from planaria.api.worker.v1.worker_service_pb2 import HeartbeatReceived as ProtoHeartbeatReceived
from planaria.api.worker.v1.worker_service_pb2 import ReportsStored as ProtoReportsStored
from planaria.api.worker.v1.worker_service_pb2 import SessionRequest, SessionResponse
from planaria.api.worker.v1.worker_service_pb2_grpc import WorkerServiceServicer
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.messages import from_message, to_message
from planaria_coordinator.application.agents.agent_messages import (
    Echo,
    EngineExited,
    EngineFault,
    HeartbeatReceived,
    Hello,
    LinkFailed,
    LogLines,
    Probe,
    ReportsStored,
    StepReport,
)
from planaria_coordinator.application.agents.agent_session import AgentSession
from planaria_coordinator.application.agents.sessions import Sessions
from planaria_coordinator.domain.engines.directive import Directive
from planaria_coordinator.domain.engines.node import EngineSnapshot
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
            yield SessionResponse(welcome=to_message(session.welcome, worker_service_pb2.Welcome))
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
    return from_message(first.hello, Hello)


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
        match message:
            case ReportsStored(report_number=report_number):
                stored = ProtoReportsStored(report_number=report_number)
                yield SessionResponse(reports_stored=stored)
            case Echo():
                yield SessionResponse(echo=ProtoEcho())
            case HeartbeatReceived(may_leave=may_leave):
                received = ProtoHeartbeatReceived(may_leave=may_leave)
                yield SessionResponse(heartbeat_received=received)
            case Probe():
                yield SessionResponse(probe=to_message(message, worker_service_pb2.Probe))
            case Directive():
                directive = to_agent.directive_message(message, plans)
                directive.epoch = session.epoch
                yield SessionResponse(directive=directive)


async def _read(requests: AsyncIterator[SessionRequest], session: AgentSession) -> None:
    async for request in requests:
        session.heard()
        match request.WhichOneof("message"):
            case "heartbeat":
                session.heartbeat(
                    tuple(
                        from_message(engine, EngineSnapshot) for engine in request.heartbeat.engines
                    ),
                    wants_to_leave=request.heartbeat.wants_to_leave,
                )
            case "leave":
                session.leave()
            case "result":
                session.result(from_agent.result_of(request.result))
            case "engine_exited":
                session.engine_exited(from_message(request.engine_exited, EngineExited))
            case "link_failed":
                session.link_failed(from_message(request.link_failed, LinkFailed))
            case "engine_fault":
                session.engine_fault(from_message(request.engine_fault, EngineFault))
            case "step_report":
                session.step_report(from_message(request.step_report, StepReport))
            case "checkpoint_report":
                session.checkpoint_report(
                    from_agent.checkpoint_report_of(request.checkpoint_report)
                )
            case "probe_result":
                session.probe_result(from_agent.probe_result_of(request.probe_result))
            case "log_lines":
                session.log_lines(from_message(request.log_lines, LogLines))
            case _:
                pass  # a newer agent may say more than we understand
        if request.report_number:
            session.note_report(request.report_number)
