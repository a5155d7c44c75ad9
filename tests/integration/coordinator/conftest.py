"""Databases to test on: the same tests run on SQLite and on PostgreSQL."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]  # ships no types
import pytest

from benchmarks.common.postgres import postgres_server, programs
from integration.coordinator.process import environment
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase, open_database
from unit.coordinator_edge.fakes import job

MAX_LOG_LINES = 5


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres_server() as url:
        yield url


@pytest.fixture
async def empty_postgresql_url(postgresql_url: str) -> str:
    """A database as a new cluster finds it, in a country where it is not noon at noon."""
    connection = await asyncpg.connect(postgresql_url)
    await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    await connection.execute("ALTER DATABASE planaria SET timezone TO 'Asia/Tokyo'")
    await connection.close()
    return postgresql_url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'coordinator.db'}"
    url: str = request.getfixturevalue("empty_postgresql_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[SqlDatabase]:
    opened = await open_database(database_url, max_log_lines_per_job=MAX_LOG_LINES)
    yield opened
    await opened.close()


@pytest.fixture
async def with_job(database: SqlDatabase) -> SqlDatabase:
    """A database that has the job `job-1`."""
    async with database.unit_of_work() as work:
        await work.jobs.add(job())
        await work.commit()
    return database


@pytest.fixture(scope="session")
def planner_address() -> Iterator[str]:
    planner = subprocess.Popen(
        [sys.executable, "-m", "planaria_planner", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert planner.stdout is not None
    with planner:
        try:
            yield json.loads(planner.stdout.readline().partition(" ")[2])["grpc_address"]
        finally:
            planner.kill()
