"""One coordinator writes at a time: the one that opened the database last."""

import asyncio
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from integration.coordinator.conftest import MAX_LOG_LINES
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.adapters.database.engine import open_engine, parse_database_url
from planaria_coordinator.adapters.database.leadership import take_leadership
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase, open_database
from unit.coordinator_edge.fakes import job, node

pytestmark = pytest.mark.integration


async def replace(database_url: str) -> None:
    """Count the epoch up, as another coordinator does that opens the database."""
    engine = open_engine(parse_database_url(database_url))
    async with engine.transaction() as transaction:
        transaction.write(take_leadership)
        await transaction.commit()
    await engine.dispose()


async def test_who_was_replaced_writes_nothing(database: SqlDatabase, database_url: str) -> None:
    """Also in a unit of work that has read before; what is there it still reads."""
    await database.check_leadership()
    async with database.unit_of_work() as work:
        await work.jobs.add(job())
        await work.commit()

    async def write_after_reading() -> None:
        async with database.unit_of_work() as work:
            assert await work.nodes.all() == []
            await replace(database_url)
            await work.nodes.save(node("a"))
            await work.commit()

    with pytest.raises(PlanariaError) as refused:
        await write_after_reading()
    assert refused.value.reason is ErrorReason.NOT_LEADER
    assert database.was_replaced.is_set()
    with pytest.raises(PlanariaError, match="another coordinator has opened this database"):
        await database.check_leadership()
    async with database.unit_of_work() as work:
        assert await work.jobs.get("job-1") == job()
        assert await work.nodes.all() == []


async def test_each_that_opens_the_database_has_a_higher_epoch(database_url: str) -> None:
    epochs = []
    for _ in range(2):
        database = await open_database(database_url, max_log_lines_per_job=MAX_LOG_LINES)
        epochs.append(database.epoch)
        await database.close()
    assert 0 < epochs[0] < epochs[1]


async def test_a_file_has_one_coordinator(tmp_path: Path) -> None:
    """The second is refused with the process that has it, and may have it afterwards."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    first = await open_database(url, max_log_lines_per_job=MAX_LOG_LINES)
    with pytest.raises(PlanariaError, match=r"\(process \d+\) uses .*--data-dir") as refused:
        await open_database(url, max_log_lines_per_job=MAX_LOG_LINES)
    assert refused.value.reason is ErrorReason.NOT_LEADER
    await first.check_leadership()
    await first.close()
    second = await open_database(url, max_log_lines_per_job=MAX_LOG_LINES)
    await second.close()


async def test_who_opens_the_database_ends_what_is_being_written(empty_postgresql_url: str) -> None:
    """Nothing of it is there, and the one before has told nobody of it."""
    database = await open_database(empty_postgresql_url, max_log_lines_per_job=MAX_LOG_LINES)
    successors = []

    async def write_slowly() -> None:
        async with database.unit_of_work() as work:
            await work.nodes.save(node("a"))
            await work.nodes.all()
            # Nothing is said in this transaction for a while, as if the process were stopped.
            successors.append(
                await open_database(empty_postgresql_url, max_log_lines_per_job=MAX_LOG_LINES)
            )
            await work.commit()

    with pytest.raises(PlanariaError) as lost:
        await write_slowly()
    assert lost.value.reason is ErrorReason.UNAVAILABLE
    async with successors[0].unit_of_work() as work:
        assert await work.nodes.all() == []
    await successors[0].close()
    await database.close()


async def test_who_is_frozen_in_a_statement_holds_nobody_up(empty_postgresql_url: str) -> None:
    """To the server it is not idle: no time-out of its session ends its transaction.

    Guard: `take_leadership` ends transactions.
    """
    first = await open_database(empty_postgresql_url, max_log_lines_per_job=MAX_LOG_LINES)
    frozen = await asyncpg.connect(empty_postgresql_url.replace("+asyncpg", ""))
    await frozen.execute("BEGIN")
    await frozen.fetch("SELECT id FROM leadership FOR SHARE")
    await frozen.prepare("SELECT epoch FROM leadership")  # and the next message never comes
    async with asyncio.timeout(20):
        successor = await open_database(empty_postgresql_url, max_log_lines_per_job=MAX_LOG_LINES)
    assert successor.epoch > first.epoch
    frozen.terminate()
    await successor.close()
    await first.close()


async def test_who_is_frozen_in_a_transaction_is_ended_by_the_server(
    empty_postgresql_url: str,
) -> None:
    """Nobody else has to come for it. Guard: the time-outs of `_SESSION`."""
    database = await open_database(empty_postgresql_url, max_log_lines_per_job=MAX_LOG_LINES)
    other = await asyncpg.connect(empty_postgresql_url.replace("+asyncpg", ""))
    locked = asyncio.Event()

    async def freeze() -> None:
        async with database.unit_of_work() as work:
            await work.nodes.save(node("a"))
            await work.nodes.all()
            async with asyncio.timeout(20), other.transaction():
                await other.execute("LOCK TABLE leadership, nodes")
            locked.set()
            await work.commit()

    with pytest.raises(PlanariaError) as ended:
        await freeze()
    assert locked.is_set()
    assert ended.value.reason is ErrorReason.UNAVAILABLE
    async with database.unit_of_work() as work:
        assert await work.nodes.all() == []
    await other.close()
    await database.close()


async def test_a_new_database_does_not_begin_with_old_epochs(tmp_path: Path) -> None:
    """Agents have heard of the epoch of the database that was lost, or restored from a backup."""
    epochs: list[int] = []
    for name in ("lost.db", "new.db"):
        database = await open_database(f"sqlite:///{tmp_path / name}", max_log_lines_per_job=1)
        if epochs:
            assert database.epoch >= epochs[0]
        epochs.append(database.epoch)
        await database.close()
    assert epochs[0] > 1_700_000_000
