"""The database is away, refuses, or is slow while a job trains and loses an engine."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]  # ships no types
import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from benchmarks.common.postgres import postgres_server
from planaria.job import JobSpec
from support.postgres import needs_postgres
from support.wire import Wire

pytestmark = [pytest.mark.e2e, pytest.mark.slow, needs_postgres]

NUM_NODES = 4
FAULT_SECONDS = 12.0
COMMIT_SECONDS = 5
TABLES = ("runs", "nodes")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as running:
        yield running


def execute(url: str, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(run())


END_CONNECTIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = 'planaria' AND pid <> pg_backend_pid()"
)


def crash(url: str) -> None:
    """Kill a server process: the server ends all others, and recovers as after a power cut."""

    async def run() -> None:
        connection = await asyncpg.connect(url)
        os.kill(await connection.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
        connection.terminate()
        await asyncio.sleep(0)  # until its socket is closed

    with suppress(asyncpg.PostgresError, OSError):  # it still recovers from the last time
        asyncio.run(run())


# A deferred trigger runs within COMMIT.
SLOW_COMMITS = (
    "CREATE OR REPLACE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ "
    f"BEGIN PERFORM pg_sleep({COMMIT_SECONDS}); RETURN NULL; END $$",
    *(
        f"CREATE CONSTRAINT TRIGGER wait AFTER INSERT OR UPDATE ON {table} "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()"
        for table in TABLES
    ),
)


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    execute(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    wire = Wire(address.hostname, address.port)
    yield wire
    wire.close()


def through(wire: Wire, url: str) -> str:
    return url.replace(f":{urlsplit(url).port}/", f":{wire.port}/")


@pytest.mark.parametrize("fault", ["away", "read-only", "slow", "crashing"])
def test_a_job_outlives_a_fault_of_the_database(
    tmp_path: Path,
    text: Path,
    url: str,
    wire: Wire,
    fault: str,
    digest_of: Callable[[JobSpec], str],
) -> None:
    """Training goes on, the recovery waits and says why, and no node is lost."""
    spec = small_job(text, training__steps=100, resources__min_nodes=NUM_NODES)
    begin, end = {
        "away": (wire.cut, wire.mend),
        "read-only": (
            lambda: execute(
                url,
                "ALTER DATABASE planaria SET default_transaction_read_only = on",
                END_CONNECTIONS,
            ),
            lambda: execute(
                url,
                "SET default_transaction_read_only = off",
                "ALTER DATABASE planaria SET default_transaction_read_only = off",
                END_CONNECTIONS,
            ),
        ),
        "slow": (lambda: execute(url, *SLOW_COMMITS), lambda: None),
        "crashing": (lambda: crash(url), lambda: None),
    }[fault]
    with Cluster(
        tmp_path / "cluster", database_url=through(wire, url), node_deadline_seconds=3
    ) as cluster:
        cluster.start(NUM_NODES)
        job_id = cluster.client.submit(spec).id
        cluster.wait_for_step(job_id, 3)
        begin()
        begin_time = datetime.now(UTC)
        time.sleep(2)
        kill_time = datetime.now(UTC)
        cluster.kill_engines("node-1")
        deadline = time.monotonic() + FAULT_SECONDS
        reasons = set()
        while time.monotonic() < deadline:
            reasons.add(cluster.client.get_job(job_id).waiting_reason)
            if fault == "crashing":
                crash(url)
            time.sleep(0.2)
        end()
        ended = cluster.wait_for_end(job_id, timeout=240)
        assert ended.state == "SUCCEEDED", ended.error
        assert ended.final_digest == digest_of(spec)
        commits = [step.commit_time for step in cluster.client.job_metrics(job_id)]
        assert any(begin_time < commit_time < kill_time for commit_time in commits)
        events = [event.type for event in cluster.client.events()]
        assert "node_lost" not in events
        assert events.count("engine_lost") == 1
        if fault != "slow":
            assert any("cannot be stored: the database" in reason for reason in reasons), reasons
