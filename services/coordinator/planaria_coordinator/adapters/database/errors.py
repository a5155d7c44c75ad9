"""What drivers raise, as one clear line."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg  # type: ignore[import-untyped]  # ships no types
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.adapters.database.columns import UnreadableDocumentError

_REFUSES_DATA: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
_SQLITE_REFUSES_DATA: Final = frozenset(
    {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH}
)
_SQLITE_DEFECTS: Final = frozenset(
    {
        sqlite3.SQLITE_OK,  # what the driver finds by itself
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_RANGE,
    }
)
_UNSTORABLE_TEXT: Final = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
)


@contextmanager
def database_errors(url: URL) -> Iterator[None]:
    """Turn what drivers raise into one clear line.

    Raises:
        PlanariaError: VERSION_MISMATCH: a stored document is not one of this version's.
        UnavailableError: the database cannot be reached, is full, or refuses.
        InvalidArgumentError: the database refuses what is to be stored, such as a text with the
            NUL character on PostgreSQL.
    """
    try:
        yield
    except UnreadableDocumentError as error:
        raise PlanariaError(
            ErrorReason.VERSION_MISMATCH,
            f"a document in the database at {url.render_as_string(hide_password=True)} {error}: "
            "another version of Planaria wrote it",
            {"part": "database", "key": error.key},
        ) from None
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        cause = _driver_error(error)
        if isinstance(cause, _UNSTORABLE_TEXT):
            message = "a text holds the NUL character, which cannot be stored"
            raise PlanariaError(ErrorReason.INVALID_ARGUMENT, message) from error
        if _refuses_data(cause):
            message = f"the database refuses what is to be stored: {_first_line(cause)}"
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


def _refuses_data(cause: BaseException) -> bool:
    if isinstance(cause, sqlite3.Error):
        return _primary_code(cause) in _SQLITE_REFUSES_DATA
    return isinstance(cause, _REFUSES_DATA)


def _first_line(cause: BaseException) -> str:
    return str(cause).partition("\n")[0]


def _primary_code(cause: sqlite3.Error) -> int:
    return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF


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
    is_denied = isinstance(cause, asyncpg.InsufficientPrivilegeError)
    if isinstance(cause, asyncpg.SyntaxOrAccessError) and not is_denied:
        return None
    if isinstance(cause, (asyncpg.PostgresError, OSError)):
        return f"cannot be used: {cause or type(cause).__name__}"
    return None


def _problem_of_sqlite(cause: sqlite3.Error) -> str | None:
    primary_code = _primary_code(cause)
    if primary_code == sqlite3.SQLITE_FULL:
        return "cannot be written: its disk is full"
    return None if primary_code in _SQLITE_DEFECTS else f"cannot be used: {cause}"
