"""Units of work: one transaction, with a repository for each kind of record."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from sqlalchemy import text

from planaria_common.errors import ErrorReason, PlanariaError
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
from planaria_coordinator.adapters.database.leadership import check_leadership
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

    def __init__(self, engine: DatabaseEngine, *, epoch: int, max_log_lines_per_job: int) -> None:
        self.epoch = epoch
        self.was_replaced = asyncio.Event()
        """Another coordinator has opened the database: this one writes nothing any more."""
        self._engine = engine
        self._max_log_lines_per_job = max_log_lines_per_job

    @asynccontextmanager
    async def unit_of_work(self, *, urgent: bool = False) -> AsyncIterator[SqlUnitOfWork]:
        async with self._transaction(urgent=urgent) as transaction:
            yield SqlUnitOfWork(transaction, max_log_lines_per_job=self._max_log_lines_per_job)

    async def ping(self) -> None:
        async with self._transaction() as transaction:
            await transaction.run(lambda connection: connection.scalar(text("SELECT 1")))

    async def check_leadership(self) -> None:
        async with self._transaction(urgent=True) as transaction:
            transaction.write(lambda _connection: None)
            await transaction.commit()

    async def totals(self) -> Totals:
        """Count, as `planaria_coordinator.application.statistics.Statistics` has it."""
        async with self._transaction() as transaction:
            return await transaction.run(count_totals)

    @asynccontextmanager
    async def _transaction(self, *, urgent: bool = False) -> AsyncIterator[Transaction]:
        check = partial(check_leadership, epoch=self.epoch)
        try:
            with database_errors(self._engine.url):
                async with self._engine.transaction(urgent=urgent, check=check) as transaction:
                    yield transaction
        except PlanariaError as error:
            if error.reason is ErrorReason.NOT_LEADER:
                self.was_replaced.set()
            raise

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


async def open_database(url: str, *, max_log_lines_per_job: int) -> SqlDatabase:
    """Connect, bring the schema up to date, and be the one who writes from now on.

    Raises:
        InvalidArgumentError: the URL is not one of SQLite or PostgreSQL.
        UnavailableError: the database cannot be reached or written.
        ConflictError: a newer version of Planaria wrote the database.
        PlanariaError: NOT_LEADER: another process uses this file of SQLite.
    """
    parsed = parse_database_url(url)
    with database_errors(parsed):
        engine = open_engine(parsed)
    try:
        epoch = await lead(engine)
    except BaseException:
        await engine.dispose()
        raise
    return SqlDatabase(engine, epoch=epoch, max_log_lines_per_job=max_log_lines_per_job)


async def lead(engine: DatabaseEngine) -> int:
    """Bring the schema up to date, replace whoever writes, and return the new epoch.

    Raises:
        as `open_database`.
    """
    with database_errors(engine.url):
        engine.keep_others_out()
    return await migrate(engine)
