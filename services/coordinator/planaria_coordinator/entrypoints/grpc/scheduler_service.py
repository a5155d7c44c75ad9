"""SchedulerService: holds the session of each custom scheduler."""
# ruff: noqa: N802 - the protos name the methods

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import grpc
from google.protobuf.duration_pb2 import Duration

from planaria.api.coordinator.v1 import scheduler_service_pb2_grpc
from planaria.api.coordinator.v1.scheduler_service_pb2 import (
    Registered,
    ScheduleRequest,
    ScheduleResponse,
)
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.entrypoints.grpc.scheduler_sessions import (
    SchedulerSession,
    SchedulerSessions,
)

BUILT_IN: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class SchedulerServicer(scheduler_service_pb2_grpc.SchedulerServiceServicer):
    """Serves `planaria.api.coordinator.v1.SchedulerService`."""

    def __init__(self, sessions: SchedulerSessions, *, decision_deadline_seconds: float) -> None:
        self._sessions = sessions
        self._deadline = Duration()
        self._deadline.FromTimedelta(timedelta(seconds=decision_deadline_seconds))
        self._log = get_logger("schedulers")

    async def Schedule(
        self,
        request_iterator: AsyncIterator[ScheduleRequest],
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[ScheduleResponse]:
        name = await _registered_name(request_iterator)
        session = self._sessions.open(name)
        self._log.info("scheduler_connected", scheduler=name)
        answers = asyncio.create_task(_take_answers(request_iterator, session))
        try:
            yield ScheduleResponse(registered=Registered(decision_deadline=self._deadline))
            async for question in session.questions():
                yield ScheduleResponse(decision_request=question)
        finally:
            answers.cancel()
            self._sessions.close(name, session)
            self._log.info("scheduler_disconnected", scheduler=name)


async def _registered_name(requests: AsyncIterator[ScheduleRequest]) -> str:
    first = await anext(requests, ScheduleRequest())
    name = first.registration.name
    if name == BUILT_IN or not _NAME.fullmatch(name):
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            f"registration.name must be letters, digits, '.', '_' or '-', and not {BUILT_IN!r}; "
            f"it comes in the first message, and is {name!r}",
            {"field": "registration.name", "actual": name},
        )
    return name


async def _take_answers(
    requests: AsyncIterator[ScheduleRequest], session: SchedulerSession
) -> None:
    try:
        async for request in requests:
            if request.WhichOneof("message") == "decision":
                session.answer(request.decision)
    finally:
        session.end()
