"""Transactions on SQLite: one writer, WAL, and one thread for everything that blocks.

Each way to the thread and back costs two wake-ups, which take long where training keeps every core
busy. Therefore a transaction that only writes goes there once, with all its statements and COMMIT.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event

from planaria_coordinator.adapters.database.columns import JSON_AS_TEXT
from planaria_coordinator.adapters.database.leadership import FileLock
from planaria_coordinator.adapters.database.transaction import Check, Writes

T = TypeVar("T")

_BUSY_TIMEOUT_SECONDS: Final = 10
_WRITES: Final = "planaria_writes"
"""Execution option of connections that will write."""


class SqliteTransaction:
    """A transaction that begins with the first write; its caller has the engine's turn.

    Until then each `run` is a transaction of its own, which needs no lock and cannot fail because
    another process wrote after it. As on PostgreSQL, two of them may see different data; within
    this process the turn prevents it.
    """

    def __init__(self, engine: Engine, thread: "OwnThread", check: Check | None) -> None:
        self._engine = engine
        self._thread = thread
        self._writes = Writes(check)
        self._connection: Connection | None = None
        """Present while there are writes that are not committed; used in the thread alone."""

    def write(self, function: Callable[[Connection], object]) -> None:
        self._writes.add(function)

    async def run(self, function: Callable[[Connection], T]) -> T:
        run = self._run if self._has_written else self._read
        return await self._thread.run(partial(run, function))

    async def commit(self) -> None:
        if self._has_written:
            await self._thread.run(self._commit)

    async def roll_back(self) -> None:
        """Leave nothing of what is not committed."""
        if self._connection is not None:
            await self._thread.run(self._close)

    @property
    def _has_written(self) -> bool:
        return bool(self._writes) or self._connection is not None

    def _read(self, function: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            return function(connection)

    def _run(self, function: Callable[[Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._engine.connect().execution_options(**{_WRITES: True})
        self._writes.flush(self._connection)
        return function(self._connection)

    def _commit(self) -> None:
        try:
            self._run(Connection.commit)
        finally:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class SqliteEngine:
    """A file, its thread and the turn of those who use it."""

    def __init__(self, url: URL) -> None:
        _make_private_file(Path(str(url.database)))
        self.sync_engine = create_engine(
            url, connect_args={"timeout": _BUSY_TIMEOUT_SECONDS}, **JSON_AS_TEXT
        )
        event.listen(self.sync_engine, "connect", _prepare)
        event.listen(self.sync_engine, "begin", _begin)
        self._thread = OwnThread()
        # SQLite has one writer: waiting in line here is fair, polling its lock is not. And who
        # polled it in the thread would keep the writer from coming to its end.
        self._turn = _Turn()
        self._lock: FileLock | None = None

    def keep_others_out(self) -> None:
        """Hold the lock of the file until the engine is disposed of, or the process ends."""
        self._lock = FileLock(Path(str(self.url.database)))

    @property
    def url(self) -> URL:
        return self.sync_engine.url

    @asynccontextmanager
    async def transaction(
        self, *, urgent: bool = False, check: Check | None = None
    ) -> AsyncIterator[SqliteTransaction]:
        async with self._turn.taken(urgent=urgent):
            transaction = SqliteTransaction(self.sync_engine, self._thread, check)
            try:
                yield transaction
            finally:
                await transaction.roll_back()

    async def dispose(self) -> None:
        await self._thread.run(self.sync_engine.dispose)
        self._thread.close()
        if self._lock is not None:
            self._lock.release()


class _Turn:
    """One at a time, in the order of arrival, but urgent ones before the others.

    The decisions of a recovery must not wait for what else is stored at that moment: the lost
    node, results, steps, lines of logs.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def taken(self, *, urgent: bool) -> AsyncIterator[None]:
        if self._is_taken:
            await self._wait(self._urgent if urgent else self._others)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, line: deque[asyncio.Future[None]]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had just come
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """To the next who has not given up; nobody else can take it in between."""
        for line in (self._urgent, self._others):
            while line:
                turn = line.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._is_taken = False


class OwnThread:
    """A thread that runs functions one after another."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function; who is cancelled meanwhile waits for its end, then is cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, function)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled from future.exception()
        return future.result()

    def close(self) -> None:
        """End the thread, in which nothing runs any more."""
        self._executor.shutdown()


def _make_private_file(path: Path) -> None:
    # It holds the secrets that engines show each other; SQLite gives its WAL the same mode.
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=True)


def _prepare(connection: Any, _record: object) -> None:
    # The driver would begin transactions late, and never around DDL: we begin them ourselves.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # A generation that was announced must outlive a power cut: FULL syncs every commit.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_SECONDS * 1000}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A transaction that reads first and then writes could fail half-way: writers wait at the start.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
