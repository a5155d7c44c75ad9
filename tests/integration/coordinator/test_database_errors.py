"""What can be wrong with a database is told in one clear line, and nothing is lost by it."""

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, event, text

from benchmarks.common.ports import free_port
from planaria_common.errors import (
    ConflictError,
    ErrorReason,
    InvalidArgumentError,
    UnavailableError,
)
from planaria_coordinator.adapters.database.engine import open_engine, parse_database_url
from planaria_coordinator.adapters.database.schema import METADATA
from planaria_coordinator.adapters.database.sqlite import SqliteEngine
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase, lead, open_database
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.domain.job.job import LogLine
from unit.coordinator_edge.fakes import NOON, job

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://localhost/x", "mysql is not supported"),
        ("no url", "it is no URL"),
        ("sqlite://", "would forget the jobs"),
        ("sqlite:///:memory:", "would forget the jobs"),
    ],
)
def test_other_databases_are_refused(url: str, problem: str) -> None:
    """The error names the option and the two forms that are right."""
    with pytest.raises(InvalidArgumentError, match=problem) as raised:
        parse_database_url(url)
    assert "--database-url" in raised.value.message
    assert "postgresql://" in raised.value.message


async def test_a_server_that_is_not_there() -> None:
    """The address is named, the password is not."""
    url = f"postgresql://me:secret@127.0.0.1:{free_port()}/x"
    with pytest.raises(UnavailableError, match="cannot be used") as raised:
        await open_database(url, max_log_lines_per_job=1)
    assert raised.value.metadata == {"part": "database"}
    assert "secret" not in raised.value.message


async def test_a_wrong_password(postgresql_url: str) -> None:
    """What the server says is passed on."""
    url = postgresql_url.replace("only-for-this-test", "wrong")
    with pytest.raises(UnavailableError, match="password authentication failed"):
        await open_database(url, max_log_lines_per_job=1)


async def test_a_database_that_does_not_exist(postgresql_url: str) -> None:
    """So is a name that the server does not know."""
    url = postgresql_url.rpartition("/")[0] + "/nothing"
    with pytest.raises(UnavailableError, match='database "nothing" does not exist'):
        await open_database(url, max_log_lines_per_job=1)


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """SQLite's file needs a folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be used"):
        await open_database(f"sqlite:///{tmp_path}/file/x.db", max_log_lines_per_job=1)


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """A file of something else stays as it is."""
    path = tmp_path / "x.db"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(UnavailableError, match="not a database"):
        await open_database(f"sqlite:///{path}", max_log_lines_per_job=1)
    assert path.read_bytes().startswith(b"something else")


async def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    """An older Planaria does not write into what a newer one made."""
    await (await open_database(database_url, max_log_lines_per_job=1)).close()
    engine = open_engine(parse_database_url(database_url))
    newer = text("UPDATE alembic_version SET version_num = '9999'")
    async with engine.transaction() as transaction:
        transaction.write(lambda connection: connection.execute(newer))
        await transaction.commit()
    await engine.dispose()

    with pytest.raises(ConflictError, match="a newer version of Planaria wrote") as raised:
        await open_database(database_url, max_log_lines_per_job=1)

    assert raised.value.reason is ErrorReason.VERSION_MISMATCH
    assert raised.value.metadata["actual"] == "9999"


async def test_migrations_lead_to_the_tables_of_the_code(database_url: str) -> None:
    """Alembic finds nothing left to do after the migrations."""
    await (await open_database(database_url, max_log_lines_per_job=1)).close()
    engine = open_engine(parse_database_url(database_url))

    def differences(connection: Connection) -> list[Any]:
        found: list[Any] = compare_metadata(MigrationContext.configure(connection), METADATA)
        return found

    async with engine.transaction() as transaction:
        left_to_do = await transaction.run(differences)
    await engine.dispose()

    assert left_to_do == []


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def test_a_sqlite_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """It holds the secrets that engines show each other."""
    database = await open_database(f"sqlite:///{tmp_path / 'x.db'}", max_log_lines_per_job=1)
    await database.ping()
    modes = modes_in(tmp_path)
    await database.close()
    assert modes == dict.fromkeys(["x.db", "x.db.lock", "x.db-wal", "x.db-shm"], 0o600)


async def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    """The unit of work that did not fit is rolled back; what was committed stays readable."""
    engine = SqliteEngine(parse_database_url(f"sqlite:///{tmp_path / 'x.db'}"))

    def shrink_disk(connection: Any, _record: object) -> None:
        connection.cursor().execute("PRAGMA max_page_count = 60")

    event.listen(engine.sync_engine, "connect", shrink_disk)
    database = SqlDatabase(engine, epoch=await lead(engine), max_log_lines_per_job=1000)
    async with database.unit_of_work() as work:
        await work.jobs.add(job())
        await work.commit()
    lines = [LogLine(job_id="job-1", engine_id="e", time=NOON, text="x" * 1000)] * 500

    async def write_much() -> None:
        async with database.unit_of_work() as work:
            await work.log_lines.append(lines)
            await work.commit()

    with pytest.raises(UnavailableError, match="its disk is full"):
        await write_much()

    async with database.unit_of_work() as work:
        assert await work.jobs.get("job-1") == job()
        assert (await work.log_lines.page("job-1", PageRequest(page_size=1))).items == ()
    await database.close()


async def test_a_server_that_went_away_is_found_again(
    empty_postgresql_url: str,
) -> None:
    """Connections that the server has ended are replaced without an error."""
    database = await open_database(empty_postgresql_url, max_log_lines_per_job=1)
    engine = open_engine(parse_database_url(empty_postgresql_url))
    end_all_others = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    async with engine.transaction() as transaction:
        await transaction.run(lambda connection: connection.execute(end_all_others).all())
    await engine.dispose()

    await database.ping()
    async with database.unit_of_work() as work:
        assert await work.events.newest_sequence() == 0
    await database.close()


async def test_text_that_postgresql_cannot_hold(empty_postgresql_url: str) -> None:
    """A NUL character from a client is the client's mistake, never a defect of ours."""
    database = await open_database(empty_postgresql_url, max_log_lines_per_job=1)

    async def look_up() -> None:
        async with database.unit_of_work() as work:
            await work.jobs.get("job\0")

    with pytest.raises(InvalidArgumentError, match="NUL"):
        await look_up()
    await database.close()
