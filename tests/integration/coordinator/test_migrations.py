"""What a database of an older version holds is there behind the migration."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

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


async def migrated(database_url: str, write: Callable[[Connection], None], query: str) -> list[Any]:
    """Return documents of the row that a query finds after the migration of what is written."""
    engine = open_engine(parse_database_url(database_url))
    async with engine.transaction() as transaction:
        transaction.write(write)
        await transaction.commit()
    database = await open_database(database_url, max_log_lines_per_job=1)
    async with engine.transaction() as transaction:
        row = await transaction.run(lambda connection: connection.execute(text(query)).one())
    await database.close()
    await engine.dispose()
    return [json.loads(each) if isinstance(each, str) else each for each in row]


def transition_in(phase: str) -> dict[str, Any]:
    return {
        "phase": phase,
        "staged": {},
        "activated": {},
        "answer": None,
    }


def write_as_of_0007(connection: Connection, run: dict[str, Any]) -> None:
    command.upgrade(_config(connection), "0007")
    connection.execute(text(JOB))
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
    run = {
        "pending": {"a": {"kind": "commit"}, "b": {"kind": "copy"}},
        "transition": transition_in("COMMITTING"),
    }
    query = "SELECT command, run FROM directives JOIN runs USING (job_id)"
    ordered, upgraded = await migrated(database_url, partial(write_as_of_0007, run=run), query)
    assert ordered == {"kind": "roll_forward"}
    assert upgraded["pending"] == {"a": {"kind": "roll_forward"}, "b": {"kind": "copy"}}
    assert upgraded["transition"] == transition_in("ROLLING_FORWARD")


@pytest.mark.parametrize(("phase", "kind"), [("STAGING", "stage_plan"), ("ACTIVATING", "activate")])
async def test_an_engine_that_was_awaited_while_it_staged_a_plan(
    database_url: str, phase: str, kind: str
) -> None:
    """Of what a run awaits, only the phase tells which Activate had the plan staged."""
    run = {"pending": {"a": {"kind": "activate"}}, "transition": transition_in(phase)}
    write = partial(write_as_of_0007, run=run)
    (upgraded,) = await migrated(database_url, write, "SELECT run FROM runs")
    assert upgraded["pending"] == {"a": {"kind": kind}}


async def test_documents_that_are_older_than_some_of_their_keys(database_url: str) -> None:
    """What had a default may be missing: the coordinator starts all the same."""

    def write(connection: Connection) -> None:
        write_as_of_0003(connection)
        for name, document in (("kept", {"kind": "activate"}), ("new", {"kind": "prepare"})):
            connection.execute(
                text("UPDATE directives SET command = :command WHERE id = :id"),
                {"id": name, "command": json.dumps(document)},
            )
        connection.execute(text("INSERT INTO runs (job_id, run) VALUES ('job-1', '{}')"))

    query = "SELECT command, run FROM directives JOIN runs USING (job_id) WHERE id = 'kept'"
    assert await migrated(database_url, write, query) == [{"kind": "activate"}, {}]


async def test_the_last_phase_of_a_recovery_has_one_name(database_url: str) -> None:
    """Also of one under way, which is stored again when it is finished."""
    old, new = ({"phases": [{"name": name}]} for name in ("resume", "activate"))
    run = {
        "interrupted": old,
        "suspected": {"a": old},
        "transition": {**transition_in("PLANNING"), "history": old},
    }
    write = partial(write_as_of_0007, run=run)
    (upgraded,) = await migrated(database_url, write, "SELECT run FROM runs")
    assert (upgraded["interrupted"], upgraded["suspected"]["a"]) == (new, new)
    assert upgraded["transition"]["history"] == new
