"""What a database of an older version holds is there behind the migration."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from alembic import command
from sqlalchemy import Connection, text

from planaria_coordinator.adapters.database.engine import open_engine, parse_database_url
from planaria_coordinator.adapters.database.migrate import _config
from planaria_coordinator.adapters.database.unit_of_work import open_database

pytestmark = pytest.mark.integration

JOB = (
    "INSERT INTO jobs (id, name, state, step, steps, generation, tokens_per_second, final_digest,"
    " create_time, spec, fault_tolerance, time_seconds) VALUES"
    " ('job-1', 'small', 'RUNNING', 1, 2, 20, 0, '', '2026-01-01 12:00', '{}', 0, '{}')"
)
DIRECTIVE = (
    "INSERT INTO directives (id, job_id, generation, engine_id, node_id, command, state) VALUES"
    " (:id, 'job-1', :generation, 'e', 'a', '{\"kind\": \"stop\", \"reason\": \"\"}', :state)"
)
REQUEST = "INSERT INTO request_ids VALUES ('r', 'create_job', 'f', 'job-1')"
DIRECTIVES = (
    ("old", 12, "RESOLVED"),
    ("superseded", 1, "SUPERSEDED"),
    ("awaited", 1, "PENDING"),
    ("kept", 13, "RESOLVED"),
    ("new", 20, "PENDING"),
)


def write_as_of_0003(connection: Connection) -> None:
    command.upgrade(_config(connection), "0003")
    connection.execute(text(JOB))
    connection.execute(text(REQUEST))
    for name, generation, state in DIRECTIVES:
        values = {"id": name, "generation": generation, "state": state}
        connection.execute(text(DIRECTIVE), values)


async def test_the_migration_prunes_what_is_pruned_from_now_on(database_url: str) -> None:
    """Settled directives of old generations go; request ids are remembered for another two days."""
    engine = open_engine(parse_database_url(database_url))
    async with engine.transaction() as transaction:
        transaction.write(write_as_of_0003)
        await transaction.commit()

    database = await open_database(database_url, max_log_lines_per_job=1)

    async with engine.transaction() as transaction:
        left = await transaction.run(
            lambda connection: connection.scalars(text("SELECT id FROM directives")).all()
        )
    async with database.unit_of_work() as work:
        known = await work.requests.get("r")
    await database.close()
    await engine.dispose()
    assert sorted(left) == ["awaited", "kept", "new"]
    assert known is not None
    assert abs(known.create_time - datetime.now(UTC)) < timedelta(hours=1)


def write_as_of_0008(connection: Connection) -> None:
    command.upgrade(_config(connection), "0008")
    connection.execute(text(JOB))
    run = {
        "pending": {"a": {"kind": "commit"}, "b": {"kind": "copy"}},
        "transition": {"phase": "COMMITTING", "phase_starts": [["COMMITTING", "12:00"]]},
    }
    connection.execute(
        text("INSERT INTO runs (job_id, run) VALUES ('job-1', :run)"), {"run": json.dumps(run)}
    )
    values = {"id": "d", "generation": 20, "state": "RESOLVED"}
    connection.execute(text(DIRECTIVE), values)
    connection.execute(
        text("UPDATE directives SET command = :command"), {"command": '{"kind": "commit"}'}
    )


async def test_a_commit_that_was_ordered_is_a_roll_forward(database_url: str) -> None:
    """A recovery that was interrupted while late engines caught up is understood."""
    engine = open_engine(parse_database_url(database_url))
    async with engine.transaction() as transaction:
        transaction.write(write_as_of_0008)
        await transaction.commit()

    database = await open_database(database_url, max_log_lines_per_job=1)

    def read(connection: Connection) -> tuple[str, ...]:
        queries = ("SELECT command FROM directives", "SELECT run FROM runs")
        return tuple(connection.scalars(text(query)).one() for query in queries)

    async with engine.transaction() as transaction:
        rows = await transaction.run(read)
    await database.close()
    await engine.dispose()
    ordered, run = (json.loads(r) if isinstance(r, str) else r for r in rows)
    assert ordered == {"kind": "roll_forward"}
    assert run["pending"] == {"a": {"kind": "roll_forward"}, "b": {"kind": "copy"}}
    phase = "ROLLING_FORWARD"
    assert run["transition"] == {"phase": phase, "phase_starts": [[phase, "12:00"]]}
