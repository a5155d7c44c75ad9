"""Which database a URL names, and how it is reached."""

from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.adapters.database.postgresql import PostgresqlEngine
from planaria_coordinator.adapters.database.sqlite import SqliteEngine
from planaria_coordinator.adapters.database.transaction import Check, Transaction

_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


class DatabaseEngine(Protocol):
    """Where transactions come from."""

    @property
    def url(self) -> URL:
        """The URL it was opened with."""
        ...

    def keep_others_out(self) -> None:
        """Lock the database for this process where the database alone cannot tell writers apart.

        Raises:
            PlanariaError: NOT_LEADER: another process has locked it.
        """
        ...

    def transaction(
        self, *, urgent: bool = False, check: Check | None = None
    ) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction; leaving the block without `commit` rolls it back.

        Args:
            urgent: it goes before those that wait.
            check: comes before its first write.
        """
        ...

    async def dispose(self) -> None:
        """Close every connection; the engine is not used again."""
        ...


def parse_database_url(text: str) -> URL:
    """Return the URL with the driver that we use.

    Raises:
        InvalidArgumentError: not a URL of SQLite or PostgreSQL.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        raise _wrong_url("it is no URL") from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise _wrong_url(f"{url.drivername} is not supported")
    if driver.startswith("sqlite") and url.database in (None, "", ":memory:"):
        raise _wrong_url("a database in memory would forget the jobs")
    return url.set(drivername=driver)


def _wrong_url(problem: str) -> PlanariaError:
    return PlanariaError(
        ErrorReason.INVALID_ARGUMENT,
        f"--database-url (PLANARIA_COORDINATOR_DATABASE_URL): {problem}; "
        "use sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME",
        {"field": "--database-url"},
    )


def open_engine(url: URL) -> DatabaseEngine:
    """Return an engine; it connects with the first use."""
    return SqliteEngine(url) if url.get_backend_name() == "sqlite" else PostgresqlEngine(url)
