"""/api/v1/events, as a list or as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from planaria import models
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.ports import Page
from planaria_coordinator.domain.job.event import Event
from planaria_coordinator.entrypoints.http import lists
from planaria_coordinator.entrypoints.http.dependencies import (
    AfterSequence,
    EventsDep,
    JobsDep,
    PageDep,
    ProvidedDep,
)
from planaria_coordinator.entrypoints.streams import until_stopped

router = APIRouter(prefix="/api/v1", tags=["events"])

EVENT_STREAM: Final = "text/event-stream"
KEEPALIVE_SECONDS: Final = 5.0
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The events; with `Accept: text/event-stream` each one as it happens.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}
LastEventId = Annotated[
    str | None,
    Header(description="Server-sent events continue after this one; wins over after_sequence."),
]


@router.get("/events", response_model=lists.EventList, responses=_RESPONSES)
async def list_events(
    request: Request,
    events: EventsDep,
    provided: ProvidedDep,
    page: PageDep,
    job_id: Annotated[str, Query(max_length=64, description="Only events of this job.")] = "",
    after_sequence: AfterSequence = 0,
    last_event_id: LastEventId = None,
) -> Page[Event] | StreamingResponse:
    """List events, the oldest first, or follow them as server-sent events."""
    if wants_stream(request):
        after = resume_point(last_event_id, after_sequence)
        await events.check_position(after)  # while there can still be an error in the answer
        return stream(events.watch(after_sequence=after, job_id=job_id), provided.stopping)
    page = replace(page, page_token=page.page_token or str(after_sequence))
    return await events.list(page, job_id=job_id)


@router.get("/jobs/{job_id}/events", response_model=lists.EventList, responses=_RESPONSES)
async def list_job_events(
    job_id: str,
    request: Request,
    jobs: JobsDep,
    events: EventsDep,
    provided: ProvidedDep,
    page: PageDep,
    after_sequence: AfterSequence = 0,
    last_event_id: LastEventId = None,
) -> Page[Event] | StreamingResponse:
    """List a job's events, the oldest first, or follow them as server-sent events."""
    await jobs.get(job_id)
    return await list_events(request, events, provided, page, job_id, after_sequence, last_event_id)


def wants_stream(request: Request) -> bool:
    """Whether the client asks for server-sent events."""
    return EVENT_STREAM in request.headers.get("accept", "")


def resume_point(last_event_id: str | None, after_sequence: int) -> int:
    """Return the sequence number after which a stream begins.

    Raises:
        InvalidArgumentError: Last-Event-ID is not a sequence number.
    """
    if not last_event_id:
        return after_sequence
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            f"Last-Event-ID must be the sequence of an event, not {last_event_id[:40]!r}",
            {"field": "Last-Event-ID", "actual": last_event_id[:40]},
        )
    return int(last_event_id)


def stream(events: AsyncIterator[Event], stopping: asyncio.Event) -> StreamingResponse:
    """Return a response that sends each event, and a comment where there is none for a while."""
    return StreamingResponse(
        _frames(events, stopping),
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _frames(events: AsyncIterator[Event], stopping: asyncio.Event) -> AsyncIterator[bytes]:
    yield KEEPALIVE_COMMENT  # the headers go out with it, before the first event
    paced = until_stopped(events, stopping=stopping, silence_seconds=KEEPALIVE_SECONDS)
    async for event in paced:
        yield KEEPALIVE_COMMENT if event is None else _frame(event)


def _frame(event: Event) -> bytes:
    body = models.Event.model_validate(event).model_dump_json()
    return format_sse_event(data_str=body, event=event.type, id=str(event.sequence))
