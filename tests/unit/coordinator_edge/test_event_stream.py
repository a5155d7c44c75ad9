"""Server-sent events over a real connection: none lost, none twice, and an orderly end."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from planaria_coordinator.entrypoints.http import events as events_module
from planaria_coordinator.entrypoints.http.server import HttpServer
from unit.coordinator_edge.conftest import TOKEN, build_app
from unit.coordinator_edge.fakes import FakeCoordinator, event

ACCEPT = {"accept": "text/event-stream"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One server-sent event."""

    id: int
    type: str
    data: dict[str, Any]


@pytest.fixture
def stopping() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def server(
    coordinator: FakeCoordinator, stopping: asyncio.Event
) -> AsyncIterator[HttpServer]:
    app = build_app(coordinator, stopping=stopping)
    server = HttpServer(app, host="127.0.0.1", port=0, port_flag="--http-port")
    await server.start()
    yield server
    stopping.set()
    await server.stop(grace_seconds=5)


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(
        base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=30, trust_env=False
    ) as client:
        yield client


async def sent_events(response: httpx.Response) -> AsyncIterator[Sent]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and fields:
            yield Sent(id=int(fields["id"]), type=fields["event"], data=json.loads(fields["data"]))
            fields = {}


async def test_a_stream_goes_on_after_the_last_event_seen(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """A browser that lost its connection sends Last-Event-ID by itself."""
    async with client.stream("GET", "/api/v1/events", headers=ACCEPT) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = sent_events(response)
        seen = [await anext(stream) for _ in range(2)]
    coordinator.events.add(event(4))
    headers = {**ACCEPT, "last-event-id": str(seen[-1].id)}
    async with client.stream(
        "GET", "/api/v1/events", params={"after_sequence": 0}, headers=headers
    ) as response:
        stream = sent_events(response)
        seen += [await anext(stream) for _ in range(2)]
        coordinator.events.add(event(5, message="two\nlines"))
        seen.append(await anext(stream))

    assert [each.id for each in seen] == [1, 2, 3, 4, 5]
    assert seen[-1].type == "step_done"
    assert seen[-1].data["message"] == "two\nlines"
    assert seen[-1].data["time"] == "2026-01-01T12:00:00.000000Z"


async def test_a_stream_of_one_job(client: httpx.AsyncClient) -> None:
    """A job's stream holds its events alone; after_sequence begins it later."""
    async with client.stream(
        "GET", "/api/v1/jobs/job-1/events", params={"after_sequence": 1}, headers=ACCEPT
    ) as response:
        assert (await anext(sent_events(response))).id == 3


async def test_a_stream_of_an_unknown_job(client: httpx.AsyncClient) -> None:
    """It is an error, not a stream that never says anything."""
    response = await client.get("/api/v1/jobs/job-9/events", headers=ACCEPT)
    assert (response.status_code, response.json()["reason"]) == (404, "JOB_NOT_FOUND")


@pytest.mark.parametrize("last_event_id", ["x", "-1", "1e3", "9" * 30])
async def test_a_wrong_last_event_id(client: httpx.AsyncClient, last_event_id: str) -> None:
    """The header is named."""
    headers = {**ACCEPT, "last-event-id": last_event_id}
    response = await client.get("/api/v1/events", headers=headers)
    assert (response.status_code, response.json()["metadata"]["field"]) == (422, "Last-Event-ID")


async def test_silence_is_filled(
    client: httpx.AsyncClient,
    coordinator: FakeCoordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comments show that the server lives while nothing happens."""
    monkeypatch.setattr(events_module, "KEEPALIVE_SECONDS", 0.01)
    coordinator.events.stored.clear()
    async with client.stream("GET", "/api/v1/events", headers=ACCEPT) as response:
        lines = response.aiter_lines()
        comments = [await anext(lines) for _ in range(6)]
    assert comments == [": ping", ""] * 3


async def test_streams_end_when_the_server_stops(
    client: httpx.AsyncClient,
    coordinator: FakeCoordinator,
    server: HttpServer,
    stopping: asyncio.Event,
) -> None:
    """Stopping waits for no watcher, and lets go of the application's watch."""
    async with client.stream("GET", "/api/v1/events", headers=ACCEPT) as response:
        stream = sent_events(response)
        assert (await anext(stream)).id == 1
        stopping.set()
        stopped = asyncio.ensure_future(server.stop(grace_seconds=60))
        assert len([each async for each in stream]) <= 2
    await stopped
    assert coordinator.events.num_watchers == 0


async def test_a_watcher_that_leaves_is_forgotten(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """Closing the connection ends the application's watch."""
    async with client.stream("GET", "/api/v1/events", headers=ACCEPT) as response:
        await anext(sent_events(response))
        assert coordinator.events.num_watchers == 1
    async with asyncio.timeout(10):
        await coordinator.events.watcher_left.wait()
    assert coordinator.events.num_watchers == 0
