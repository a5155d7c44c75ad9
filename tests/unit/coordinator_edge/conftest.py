"""A coordinator's HTTP application over fakes."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from planaria.models import Info
from planaria_common.version import PROTOCOL_VERSION
from planaria_coordinator.entrypoints.http.app import create_app
from planaria_coordinator.entrypoints.http.dependencies import Provided
from planaria_coordinator.entrypoints.http.security import AccessRules
from unit.coordinator_edge.fakes import NOON, FakeCoordinator, FakeStatistics, clock_at

TOKEN = "secret-of-the-cluster"
RULES = AccessRules(
    token=TOKEN,
    reads_need_token=False,
    hosts=frozenset({"localhost", "127.0.0.1", "[::1]"}),
    origins=frozenset({"https://dashboard.example"}),
    max_body_bytes=10_000,
)
INFO = Info(
    version="0.1.0",
    protocol_version=PROTOCOL_VERSION,
    grpc_endpoints=("127.0.0.1:50051",),
    http_url="http://127.0.0.1:8080",
)


def build_app(
    coordinator: FakeCoordinator,
    *,
    rules: AccessRules = RULES,
    web_dir: Path | None = None,
    stopping: asyncio.Event | None = None,
) -> FastAPI:
    provided = Provided(
        coordinator=coordinator.as_coordinator(),
        statistics=FakeStatistics(),
        clock=clock_at(NOON + timedelta(seconds=2)),
        stopping=stopping or asyncio.Event(),
        info=lambda: INFO,
    )
    return create_app(provided, rules=rules, web_dir=web_dir)


def client_of(app: FastAPI, *, token: str | None = TOKEN) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://localhost",
        headers={"authorization": f"Bearer {token}"} if token else {},
    )


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator()


@pytest.fixture
async def client(coordinator: FakeCoordinator) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(build_app(coordinator)) as client:
        yield client
