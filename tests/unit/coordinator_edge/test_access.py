"""Who may call over HTTP: Host, Origin, token, size."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from unit.coordinator_edge.conftest import RULES, TOKEN, build_app, client_of
from unit.coordinator_edge.fakes import FakeCoordinator

READS = ["/api/v1/jobs", "/api/v1/events", "/api/v1/info", "/metrics"]
CHANGES = [
    ("POST", "/api/v1/jobs"),
    ("POST", "/api/v1/jobs/job-1:cancel"),
    ("POST", "/api/v1/nodes/a:drain"),
    ("DELETE", "/api/v1/nodes/a"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize("given", [None, "Bearer wrong", TOKEN, "Basic abc", "Bearer ", "Bearer é"])
async def test_every_change_needs_the_token(
    coordinator: FakeCoordinator, method: str, path: str, given: str | None
) -> None:
    """Without the cluster's token nothing changes, also on loopback."""
    headers = {} if given is None else {b"authorization": given.encode()}
    async with client_of(build_app(coordinator), token=None) as client:
        response = await client.request(method, path, headers=headers)

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["reason"] == "UNAUTHENTICATED"
    assert not coordinator.jobs.created
    assert not coordinator.jobs.changes
    assert not coordinator.cluster.changes


@pytest.mark.parametrize("path", READS)
async def test_reading_is_free_on_loopback_only(coordinator: FakeCoordinator, path: str) -> None:
    """A server that other machines can reach asks readers for the token, too."""
    loopback = build_app(coordinator)
    beyond = build_app(coordinator, rules=replace(RULES, reads_need_token=True))
    answers = []
    for app, token in [(loopback, None), (beyond, None), (beyond, "wrong"), (beyond, TOKEN)]:
        async with client_of(app, token=token) as client:
            answers.append((await client.get(path)).status_code)

    assert answers == [200, 401, 401, 200]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_need_no_token(coordinator: FakeCoordinator, path: str) -> None:
    """Load balancers have none, and probes tell nothing."""
    app = build_app(coordinator, rules=replace(RULES, reads_need_token=True))
    async with client_of(app, token=None) as client:
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("evil.example:8080", 403),
        ("", 403),
        ("localhost:80:80", 403),
    ],
)
async def test_only_known_hosts_are_answered(
    client: httpx.AsyncClient, host: str, status: int
) -> None:
    """A page whose name was made to point here (DNS rebinding) learns nothing."""
    response = await client.get("/api/v1/jobs", headers={"host": host})

    assert response.status_code == status
    if status == 403:
        assert response.json()["reason"] == "ORIGIN_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost", 200),
        ("https://localhost", 200),
        ("https://dashboard.example", 200),
        ("https://evil.example", 403),
        ("http://localhost:3000", 403),
        ("null", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_only_known_origins_may_call(
    client: httpx.AsyncClient, method: str, origin: str | None, status: int
) -> None:
    """A page from elsewhere cannot use a user's browser to call, even with the token."""
    headers = {} if origin is None else {"origin": origin}
    path = "/api/v1/jobs/job-1" + (":pause" if method == "POST" else "")

    response = await client.request(method, path, headers=headers)

    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers


async def test_a_body_declared_too_large_is_refused(client: httpx.AsyncClient) -> None:
    """The limit is named before anything is read."""
    response = await client.post("/api/v1/jobs", content=b" " * 10_001)

    assert response.status_code == 413
    assert response.json()["metadata"] == {"bytes": "10001", "limit_bytes": "10000"}


async def test_a_body_that_turns_out_too_large_is_refused(client: httpx.AsyncClient) -> None:
    """A body without a declared length is counted as it comes."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 1000

    response = await client.post(
        "/api/v1/jobs", content=chunks(), headers={"content-type": "application/json"}
    )

    assert response.status_code == 413
    assert response.json()["reason"] == "MESSAGE_TOO_LARGE"
