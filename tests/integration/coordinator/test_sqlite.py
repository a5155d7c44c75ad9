"""How transactions use SQLite's one thread and its one lock."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from planaria_coordinator.adapters.database.engine import parse_database_url
from planaria_coordinator.adapters.database.sqlite import SqliteEngine
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase, lead
from planaria_coordinator.domain.engines.directive import Directive
from planaria_coordinator.domain.job.signals import NodeLost
from unit.coordinator.simulation.world import World, running_world
from unit.coordinator_edge.fakes import job, node

pytestmark = pytest.mark.integration


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(parse_database_url(f"sqlite:///{path}"))
    yield engine
    await engine.dispose()


@pytest.fixture
async def database(engine: SqliteEngine) -> SqlDatabase:
    return SqlDatabase(engine, epoch=await lead(engine), max_log_lines_per_job=5)


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Everything that is handed to a thread from now on."""
    handed_over: list[object] = []
    submit = ThreadPoolExecutor.submit

    def count(self: ThreadPoolExecutor, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        handed_over.append(function)
        return submit(self, function, *args, **kwargs)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", count)
    return handed_over


@contextmanager
def write_lock_of_another_process(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def world_on(
    database: SqlDatabase, send: Callable[[Directive], None], monkeypatch: pytest.MonkeyPatch
) -> World:
    """A job that trains, whose decisions are stored in a database."""
    world = await running_world(4)
    async with database.unit_of_work() as work:
        await work.jobs.add(await world.job())
        await work.commit()
    state = world.coordinator._state
    monkeypatch.setattr(state, "database", database)
    monkeypatch.setattr(state.dispatcher, "send", send)
    world.planner.is_open.clear()
    return world


async def test_a_decision_is_stored_in_one_hop(
    database: SqlDatabase, hops: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose cores are busy, each way to the thread and back takes long."""
    told: list[Directive] = []
    world = await world_on(database, told.append, monkeypatch)
    actor = world.coordinator._state.actors[world.job_id]
    hops.clear()

    await actor.post(
        NodeLost(node_id="n1", fault_time=world.clock.now(), reason="no heartbeat", gone=True)
    )

    assert len(hops) == 1
    assert len(told) == 3
    async with database.unit_of_work() as work:
        assert await work.directives.pending() == told
        assert await work.runs.get(world.job_id) == actor.run
        assert await work.events.newest_sequence() > 0
    await world.stop()


async def test_uncommitted_writes_take_no_hop(database: SqlDatabase, hops: list[object]) -> None:
    """Writes wait for the next reading or for the commit."""
    async with database.unit_of_work() as work:
        await work.jobs.add(job())
    assert hops == []
    async with database.unit_of_work() as work:
        assert await work.jobs.get("job-1") is None
    assert len(hops) == 1


async def test_reading_needs_no_write_lock(database: SqlDatabase, path: Path) -> None:
    """Users see their jobs while somebody else writes."""
    with write_lock_of_another_process(path):
        async with database.unit_of_work() as work:
            assert await work.jobs.unfinished() == []


async def test_writing_after_another_process_has_written(database: SqlDatabase, path: Path) -> None:
    """What was read before does not make the write fail: it is no part of its transaction."""
    async with database.unit_of_work() as work:
        assert await work.nodes.all() == []
        with write_lock_of_another_process(path) as other:
            other.execute("INSERT INTO counters VALUES ('elsewhere', 1)")
            other.execute("COMMIT")
        await work.nodes.save(node("a"))
        await work.commit()
    async with database.unit_of_work() as work:
        assert len(await work.nodes.all()) == 1


@contextmanager
def stopped_commit(engine: SqliteEngine) -> Iterator[asyncio.Event]:
    """Stop the thread before the next COMMIT until the block ends; the event says it stands."""
    reached, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def stop(_connection: Connection) -> None:
        loop.call_soon_threadsafe(reached.set)
        go_on.wait()

    event.listen(engine.sync_engine, "commit", stop, once=True)
    try:
        yield reached
    finally:
        go_on.set()


async def add_job(database: SqlDatabase, job_id: str) -> None:
    async with database.unit_of_work() as work:
        await work.jobs.add(job(job_id))
        await work.commit()


async def test_a_caller_cancelled_during_a_commit_leaves_after_it(
    engine: SqliteEngine, database: SqlDatabase
) -> None:
    """However often: the next unit of work begins behind it, and finds no transaction open."""
    with stopped_commit(engine) as reached:
        cancelled = asyncio.create_task(add_job(database, "job-1"))
        await reached.wait()
        following = asyncio.create_task(add_job(database, "job-2"))
        for _ in range(3):
            cancelled.cancel()
            await asyncio.sleep(0)
        assert not cancelled.done()
        assert not following.done()

    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await following
    async with database.unit_of_work() as work:
        assert [found.id for found in await work.jobs.unfinished()] == ["job-1", "job-2"]


async def test_a_decision_goes_before_what_else_is_to_be_stored(
    engine: SqliteEngine, database: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines wait for it. Guard: the actor's unit of work is urgent."""
    was_stored_before: list[bool] = []
    world = await world_on(
        database, lambda _: was_stored_before.append(waiting.done()), monkeypatch
    )
    actor = world.coordinator._state.actors[world.job_id]
    with stopped_commit(engine) as reached:
        writing = asyncio.create_task(add_job(database, "job-1"))
        await reached.wait()
        waiting = asyncio.create_task(add_job(database, "job-2"))
        await asyncio.sleep(0)
        decided = actor.post(
            NodeLost(node_id="n1", fault_time=world.clock.now(), reason="no heartbeat", gone=True)
        )
        await asyncio.sleep(0.01)

    await asyncio.gather(writing, waiting, decided)
    assert was_stored_before == [False] * 3
    await world.stop()


@pytest.mark.parametrize("urgent", [False, True])
async def test_a_cancelled_wait_delays_no_other_writer(
    engine: SqliteEngine, database: SqlDatabase, *, urgent: bool
) -> None:
    """Neither in the line nor at the very moment at which the turn comes."""

    async def hold_the_turn() -> None:
        async with database.unit_of_work(urgent=urgent):
            await asyncio.Event().wait()

    async with database.unit_of_work():
        in_line, at_its_turn = (asyncio.create_task(hold_the_turn()) for _ in range(2))
        following = asyncio.create_task(add_job(database, "job-1"))
        await asyncio.sleep(0)
        in_line.cancel()
        await asyncio.wait([in_line])
    at_its_turn.cancel()  # the turn has come; the task has not run since

    async with asyncio.timeout(10):
        await following
    assert at_its_turn.cancelled()
    await add_job(database, "job-2")


async def test_a_caller_cancelled_before_the_commit_writes_nothing(
    database: SqlDatabase,
) -> None:
    """Also when what was written has reached the database."""
    has_written = asyncio.Event()

    async def write_and_wait() -> None:
        async with database.unit_of_work() as work:
            await work.jobs.add(job("job-1"))
            assert await work.jobs.get("job-1") is not None
            has_written.set()
            await asyncio.Event().wait()

    cancelled = asyncio.create_task(write_and_wait())
    await has_written.wait()
    cancelled.cancel()
    await add_job(database, "job-2")
    async with database.unit_of_work() as work:
        assert [found.id for found in await work.jobs.unfinished()] == ["job-2"]
    with pytest.raises(asyncio.CancelledError):
        await cancelled
