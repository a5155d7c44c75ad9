"""Units of work: one transaction, with a repository for each kind of record."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from planaria_coordinator.adapters.database.cluster_repositories import (
    SqlEvents,
    SqlNodes,
    SqlRequests,
)
from planaria_coordinator.adapters.database.engine import (
    WRITES,
    database_errors,
    open_engine,
    parse_database_url,
)
from planaria_coordinator.adapters.database.job_repositories import (
    SqlDirectives,
    SqlGenerations,
    SqlJobs,
    SqlLogLines,
    SqlRecoveries,
    SqlRuns,
    SqlStepMetrics,
    SqlTransitions,
)
from planaria_coordinator.adapters.database.migrate import migrate
from planaria_coordinator.adapters.database.statistics import count_totals
from planaria_coordinator.application.statistics import Totals


class SqlUnitOfWork:
    """One transaction; `planaria_coordinator.application.ports.UnitOfWork`."""

    def __init__(self, connection: AsyncConnection, *, max_log_lines_per_job: int) -> None:
        self._connection = connection
        self.jobs = SqlJobs(connection)
        self.runs = SqlRuns(connection)
        self.nodes = SqlNodes(connection)
        self.generations = SqlGenerations(connection)
        self.transitions = SqlTransitions(connection)
        self.directives = SqlDirectives(connection)
        self.events = SqlEvents(connection)
        self.recoveries = SqlRecoveries(connection)
        self.step_metrics = SqlStepMetrics(connection)
        self.log_lines = SqlLogLines(connection, max_lines_per_job=max_log_lines_per_job)
        self.requests = SqlRequests(connection)

    async def commit(self) -> None:
        await self._connection.commit()


class SqlDatabase:
    """Where units of work come from; `planaria_coordinator.application.ports.Database`."""

    def __init__(self, engine: AsyncEngine, *, max_log_lines_per_job: int) -> None:
        self._engine = engine
        self._max_log_lines_per_job = max_log_lines_per_job
        # SQLite has one writer: waiting in line here is fair, polling its lock is not.
        is_sqlite = engine.dialect.name == "sqlite"
        self._turn: asyncio.Lock | None = asyncio.Lock() if is_sqlite else None

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[SqlUnitOfWork]:
        turn: AbstractAsyncContextManager[None] = self._turn or nullcontext()
        with database_errors(self._engine.url):
            async with turn, self._engine.connect() as connection:
                await connection.execution_options(**{WRITES: True})
                yield SqlUnitOfWork(connection, max_log_lines_per_job=self._max_log_lines_per_job)

    async def ping(self) -> None:
        with database_errors(self._engine.url):
            async with self._engine.connect() as connection:
                await connection.execute(text("SELECT 1"))

    async def totals(self) -> Totals:
        """Count, as `planaria_coordinator.application.statistics.Statistics` has it."""
        with database_errors(self._engine.url):
            async with self._engine.connect() as connection:
                return await count_totals(connection)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


async def open_database(url: str, *, max_log_lines_per_job: int) -> SqlDatabase:
    """Connect and bring the schema up to date.

    Raises:
        InvalidArgumentError: the URL is not one of SQLite or PostgreSQL.
        UnavailableError: the database cannot be reached or written.
        ConflictError: a newer version of Planaria wrote the database.
    """
    parsed = parse_database_url(url)
    with database_errors(parsed):
        engine = open_engine(parsed)
    try:
        await migrate(engine)
    except BaseException:
        await engine.dispose()
        raise
    return SqlDatabase(engine, max_log_lines_per_job=max_log_lines_per_job)
