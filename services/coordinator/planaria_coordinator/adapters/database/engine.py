"""The connection to the database: SQLite (WAL, one writer) or PostgreSQL, and its errors."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]  # ships no types
from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from planaria_common.errors import ErrorReason, PlanariaError

_DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_BUSY_TIMEOUT_SECONDS: Final = 10
_CONNECT_TIMEOUT_SECONDS: Final = 10
WRITES: Final = "planaria_writes"
"""Execution option of connections that will write."""
_UNREACHABLE: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
)
_SQLITE_UNUSABLE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
_UNSTORABLE_TEXT: Final = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
)


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


def open_engine(url: URL) -> AsyncEngine:
    """Return an engine; it connects with the first use."""
    if url.get_backend_name() == "sqlite":
        _make_private_file(Path(str(url.database)))
        engine = create_async_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_SECONDS})
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    return create_async_engine(
        url, pool_pre_ping=True, connect_args={"timeout": _CONNECT_TIMEOUT_SECONDS}
    )


def _make_private_file(path: Path) -> None:
    # It holds the secrets that engines show each other; SQLite gives its WAL the same mode.
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=True)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin transactions late, and never around DDL: we begin them ourselves.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # A generation that was announced must outlive a power cut: FULL syncs every commit.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_SECONDS * 1000}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and then writes could fail half-way: writers wait at the start.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def database_errors(url: URL) -> Iterator[None]:
    """Turn what drivers raise into one clear line.

    Raises:
        UnavailableError: the database cannot be reached, is full, or refuses.
        InvalidArgumentError: a text holds the NUL character, which PostgreSQL cannot store.
    """
    try:
        yield
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        cause = _driver_error(error)
        if isinstance(cause, _UNSTORABLE_TEXT):
            message = "a text holds the NUL character, which cannot be stored"
            raise PlanariaError(ErrorReason.INVALID_ARGUMENT, message) from error
        problem = _problem_of(error, cause)
        if problem is None:
            raise
        raise PlanariaError(
            ErrorReason.UNAVAILABLE,
            f"the database at {url.render_as_string(hide_password=True)} {problem}",
            {"part": "database"},
        ) from error


def _driver_error(error: BaseException) -> BaseException:
    """Return the driver's own error, below SQLAlchemy's wrappers."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def _problem_of(error: Exception, cause: BaseException) -> str | None:
    """Return what is wrong, in words; None for a defect of ours, such as a wrong statement."""
    if isinstance(error, PoolTimeoutError):
        return "is busy: no connection became free in time"
    if isinstance(cause, sqlite3.Error):
        return _problem_of_sqlite(cause)
    if isinstance(cause, asyncpg.DiskFullError):
        return "cannot be written: its disk is full"
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return f"ended the connection: {cause}"
    if isinstance(cause, _UNREACHABLE):
        return f"cannot be used: {cause or type(cause).__name__}"
    return None


def _problem_of_sqlite(cause: sqlite3.Error) -> str | None:
    primary_code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    if primary_code == sqlite3.SQLITE_FULL:
        return "cannot be written: its disk is full"
    return f"cannot be used: {cause}" if primary_code in _SQLITE_UNUSABLE else None
