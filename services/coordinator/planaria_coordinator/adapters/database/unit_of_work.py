"""Units of work: one transaction, with a repository for each kind of record."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text

from planaria_coordinator.adapters.database.cluster_repositories import (
    SqlEvents,
    SqlNodes,
    SqlRequests,
)
from planaria_coordinator.adapters.database.engine import (
    DatabaseEngine,
    open_engine,
    parse_database_url,
)
from planaria_coordinator.adapters.database.errors import database_errors
from planaria_coordinator.adapters.database.job_repositories import (
    SqlDirectives,
    SqlGenerations,
    SqlJobs,
    SqlLogLines,
    SqlRecoveries,
    SqlRuns,
    SqlStepMetrics,
)
from planaria_coordinator.adapters.database.migrate import migrate
from planaria_coordinator.adapters.database.statistics import count_totals
from planaria_coordinator.adapters.database.transaction import Transaction
from planaria_coordinator.application.ports import UnitOfWork
from planaria_coordinator.application.statistics import Totals


class SqlUnitOfWork(UnitOfWork):
    """One transaction."""

    def __init__(self, transaction: Transaction, *, max_log_lines_per_job: int) -> None:
        self._transaction = transaction
        self.jobs = SqlJobs(transaction)
        self.runs = SqlRuns(transaction)
        self.nodes = SqlNodes(transaction)
        self.generations = SqlGenerations(transaction)
        self.directives = SqlDirectives(transaction)
        self.events = SqlEvents(transaction)
        self.recoveries = SqlRecoveries(transaction)
        self.step_metrics = SqlStepMetrics(transaction)
        self.log_lines = SqlLogLines(transaction, max_lines_per_job=max_log_lines_per_job)
        self.requests = SqlRequests(transaction)

    async def commit(self) -> None:
        await self._transaction.commit()


class SqlDatabase:
    """Where units of work come from; `planaria_coordinator.application.ports.Database`."""

    def __init__(self, engine: DatabaseEngine, *, max_log_lines_per_job: int) -> None:
        self._engine = engine
        self._max_log_lines_per_job = max_log_lines_per_job

    @asynccontextmanager
    async def unit_of_work(self, *, urgent: bool = False) -> AsyncIterator[SqlUnitOfWork]:
        async with self._transaction(urgent=urgent) as transaction:
            yield SqlUnitOfWork(transaction, max_log_lines_per_job=self._max_log_lines_per_job)

    async def ping(self) -> None:
        async with self._transaction() as transaction:
            await transaction.run(lambda connection: connection.scalar(text("SELECT 1")))

    async def totals(self) -> Totals:
        """Count, as `planaria_coordinator.application.statistics.Statistics` has it."""
        async with self._transaction() as transaction:
            return await transaction.run(count_totals)

    @asynccontextmanager
    async def _transaction(self, *, urgent: bool = False) -> AsyncIterator[Transaction]:
        with database_errors(self._engine.url):
            async with self._engine.transaction(urgent=urgent) as transaction:
                yield transaction

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
