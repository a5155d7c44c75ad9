"""Transactions on PostgreSQL."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from planaria_coordinator.adapters.database.columns import JSON_AS_TEXT
from planaria_coordinator.adapters.database.transaction import Check, Writes

T = TypeVar("T")

_CONNECT_TIMEOUT_SECONDS: Final = 10
_COMMAND_TIMEOUT_SECONDS = 30.0
"""After which a server that has vanished without a word counts as unavailable."""
_SESSION: Final = {
    # A coordinator that freezes or is cut off in a transaction holds the epoch for two seconds.
    "idle_in_transaction_session_timeout": "2000",
    "tcp_user_timeout": "2000",
    "tcp_keepalives_idle": "1",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "2",
}


class PostgresqlTransaction:
    """A transaction of one connection of the pool.

    It is READ COMMITTED: each statement sees what others have committed until then.
    """

    def __init__(self, connection: AsyncConnection, check: Check | None) -> None:
        self._connection = connection
        self._writes = Writes(check)

    def write(self, function: Callable[[Connection], object]) -> None:
        self._writes.add(function)

    async def run(self, function: Callable[[Connection], T]) -> T:
        return await self._connection.run_sync(self._run, function)

    async def commit(self) -> None:
        await self._connection.run_sync(self._run, Connection.commit)

    def _run(self, connection: Connection, function: Callable[[Connection], T]) -> T:
        self._writes.flush(connection)
        return function(connection)


class PostgresqlEngine:
    """A pool of connections."""

    def __init__(self, url: URL) -> None:
        self._engine = create_async_engine(
            url,
            pool_pre_ping=True,
            connect_args={
                "timeout": _CONNECT_TIMEOUT_SECONDS,
                "command_timeout": _COMMAND_TIMEOUT_SECONDS,
                "server_settings": _SESSION,
            },
            **JSON_AS_TEXT,
        )

    def keep_others_out(self) -> None:
        """Nothing: who opens the database later replaces us, and every transaction checks that."""

    @property
    def url(self) -> URL:
        return self._engine.url

    @asynccontextmanager
    async def transaction(
        self,
        *,
        urgent: bool = False,  # noqa: ARG002 - nobody waits for others
        check: Check | None = None,
    ) -> AsyncIterator[PostgresqlTransaction]:
        async with self._engine.connect() as connection:
            yield PostgresqlTransaction(connection, check)

    async def dispose(self) -> None:
        await self._engine.dispose()
