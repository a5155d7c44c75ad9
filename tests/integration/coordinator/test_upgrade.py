"""The database of an unfinished job, made by an older version: nothing of it is lost."""

import json
import re
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from alembic import command
from pydantic_core import to_json
from sqlalchemy import Connection

from integration.coordinator.old_databases import NAMES, copy_rows, open_old
from planaria_coordinator.adapters.database.columns import Document
from planaria_coordinator.adapters.database.engine import open_engine, parse_database_url
from planaria_coordinator.adapters.database.migrate import _config
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase, open_database
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.domain.engines.directive import (
    Activate,
    Command,
    Copy,
    Prepare,
    RollForward,
    StagePlan,
)
from planaria_coordinator.domain.job.decide import decide
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun, Limits, Moment
from planaria_coordinator.domain.job.signals import NodeLost, Restarted, Signal
from planaria_coordinator.domain.recovery.transition import Cause, Phase

pytestmark = pytest.mark.integration

JOB_ID = "job-1"
NEW_NAMES = {
    "base": "initial_state",
    "ledger": "time_account",
    "ledger_before": "time_account_before",
    "story": "history",
    "is_ahead": "plans_online",
    "num_losses": "num_faults",
    "last_loss": "last_fault",
    "places": "stage_engines",
}
"""No key of the old documents has one of these names and another meaning."""
DROPPED = (
    # It was promised as one figure and used for another.
    re.compile(r"suspected/[^/]+/pause_seconds"),
    # Nothing read them.
    re.compile(r"transition/phase_starts/.+"),
    re.compile(r"create_time|last_commit/.+|.*/num_communicators"),
    re.compile(r"transition/answer/(candidates/.+|copies/\d+/num_bytes)"),
)
"""Where values of a run were that are gone."""


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield everything that a document holds, by where it is."""
    match value:
        case dict():
            for key, each in value.items():
                yield from leaves(each, (*path, key))
        case list():
            for index, each in enumerate(value):
                yield from leaves(each, (*path, str(index)))
        case _:
            yield path, value


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    connection = open_old(request.param)
    yield connection
    connection.close()


@pytest.fixture
def rolling_forward(old: sqlite3.Connection) -> None:
    """Change the old database to a moment at which its late engines are to commit a step."""
    ((before,),) = old.execute("SELECT run FROM runs")
    run = json.loads(before)
    transition = run["transition"]
    transition["phase"] = "COMMITTING"
    for pending in run["pending"].values():
        pending["kind"] = "commit"
    old.execute("UPDATE runs SET run = ?", (json.dumps(run),))
    command = json.dumps({"kind": "commit", "record": run["last_commit"]})
    for directive_id in run["pending"]:
        old.execute(
            "UPDATE directives SET command = ?, command_of = NULL WHERE id = ?",
            (command, directive_id),
        )


@pytest.fixture
def ended(old: sqlite3.Connection) -> None:
    """Change the old database to one whose job has ended, and whose run is kept."""
    ((before,),) = old.execute("SELECT run FROM runs")
    run = json.loads(before) | {"state": "SUCCEEDED", "transition": None, "pending": {}}
    old.execute("UPDATE runs SET run = ?", (json.dumps(run),))
    old.execute("UPDATE jobs SET state = 'SUCCEEDED'")
    old.execute("UPDATE directives SET state = 'RESOLVED'")


@pytest.fixture
async def upgraded(old: sqlite3.Connection, database_url: str) -> SqlDatabase:
    """The old database, opened by this version, on SQLite or PostgreSQL."""

    def write(connection: Connection) -> None:
        command.upgrade(_config(connection), "0005")
        copy_rows(old, connection)

    engine = open_engine(parse_database_url(database_url))
    async with engine.transaction() as transaction:
        transaction.write(write)
        await transaction.commit()
    await engine.dispose()
    return await open_database(database_url, max_log_lines_per_job=1)


async def stored_run(database: SqlDatabase) -> JobRun:
    async with database.unit_of_work() as work:
        run = await work.runs.get(JOB_ID)
    assert run is not None
    return run


def new_value(path: tuple[str, ...], value: Any) -> Any:
    """Return what a value is called by now: the last phase of a recovery was called resume."""
    is_phase = "phases" in path and path[-1] == "name"
    return "activate" if is_phase and value == "resume" else value


async def test_nothing_of_a_run_is_lost(old: sqlite3.Connection, upgraded: SqlDatabase) -> None:
    """Every value is where it was, under its new name."""
    ((before,),) = old.execute("SELECT run FROM runs")
    run = await stored_run(upgraded)
    await upgraded.close()

    kept = dict(leaves(json.loads(to_json(run))))
    expected = {
        tuple(NEW_NAMES.get(part, part) for part in path): new_value(path, value)
        for path, value in leaves(json.loads(before))
        if not any(gone.fullmatch("/".join(path)) for gone in DROPPED)
    }
    assert expected.items() <= kept.items()
    assert run.initial_state is not None
    assert run.initial_state.path.endswith("/first/step-00000004")
    assert run.initial_steps == 4
    assert run.num_faults >= 1


async def test_directives_and_rows_of_the_job_are_read(upgraded: SqlDatabase) -> None:
    """Those that engines have not answered are sent again; its recoveries can still be listed."""
    run = await stored_run(upgraded)
    async with upgraded.unit_of_work() as work:
        pending = await work.directives.pending()
        recoveries = await work.recoveries.page(JOB_ID, PageRequest(page_size=10))
        job = await work.jobs.get(JOB_ID)
    await upgraded.close()

    assert {each.id for each in pending} >= run.pending.keys()
    assert len(recoveries.items) == run.num_recoveries
    phases = {phase.name for recovery in recoveries.items for phase in recovery.phases}
    assert "resume" not in phases
    assert ("activate" in phases) == bool(phases)
    assert job is not None
    assert job.state is run.state


@pytest.mark.parametrize("old", ["running"], indirect=True)
async def test_commands_name_the_initial_state(
    old: sqlite3.Connection, upgraded: SqlDatabase
) -> None:
    """The Prepare of a node that joins has it, and the first Copy takes every layer from it."""
    async with upgraded.unit_of_work() as work:
        (prepare,) = (
            each.command
            for each in await work.directives.pending()
            if isinstance(each.command, Prepare)
        )
    async with upgraded._transaction() as transaction:
        copies = await transaction.run(
            lambda connection: [
                Document(Command).process_result_value(text, connection.dialect)
                for text in connection.exec_driver_sql(
                    "SELECT CAST(command AS TEXT) FROM directives WHERE command IS NOT NULL"
                ).scalars()
            ]
        )
    await upgraded.close()
    assert prepare.initial_state is not None
    assert prepare.initial_state.step == 4
    assert next(each.initial_layers for each in copies if isinstance(each, Copy))[:2] == (0, 1)


@pytest.mark.parametrize("old", ["recovering"], indirect=True)
async def test_late_engines_roll_forward(rolling_forward: None, upgraded: SqlDatabase) -> None:
    """A commit that was ordered, and not answered, is awaited and sent again as a roll-forward."""
    run = await stored_run(upgraded)
    async with upgraded.unit_of_work() as work:
        commands = {each.id: each.command for each in await work.directives.pending()}
    await upgraded.close()
    assert run.transition is not None
    assert run.transition.phase is Phase.ROLLING_FORWARD
    assert len(run.pending) == 2
    for directive_id, pending in run.pending.items():
        assert pending.kind == "roll_forward"
        command = commands[directive_id]
        assert isinstance(command, RollForward)
        assert command.record.step == 10


@pytest.mark.parametrize("old", ["running"], indirect=True)
async def test_a_job_that_has_ended_is_read(ended: None, upgraded: SqlDatabase) -> None:
    run = await stored_run(upgraded)
    async with upgraded.unit_of_work() as work:
        pending = await work.directives.pending()
        job = await work.jobs.get(JOB_ID)
    await upgraded.close()
    assert run.state is JobState.SUCCEEDED
    assert (run.transition, run.pending, pending) == (None, {}, [])
    assert job is not None
    assert job.state is JobState.SUCCEEDED


@pytest.mark.parametrize("old", ["switching", "recovering"], indirect=True)
async def test_a_plan_that_was_staged_is_told_from_one_in_force(upgraded: SqlDatabase) -> None:
    """One of three engines followed a layer; two engines finished a step in the plan before."""
    async with upgraded.unit_of_work() as work:
        commands = {each.id: each.command for each in await work.directives.pending()}
    await upgraded.close()
    staged = [commands[f"job-1/3/{number}"] for number in (21, 22, 23)]
    followed = [each.layers for each in staged if isinstance(each, StagePlan)]
    assert [[source.layer for source in layers] for layers in followed] == [[], [4], []]
    finishing = commands["job-1/2/18"]
    assert isinstance(finishing, Activate)
    assert finishing.committed_steps == 10


async def test_the_job_goes_on(upgraded: SqlDatabase) -> None:
    """A new coordinator restores it, and carries it through the loss of another node."""
    run = await stored_run(upgraded)
    await upgraded.close()
    now = Moment(seconds=0.0, time=run.time_account.since + timedelta(minutes=1))

    def after(signal: Signal) -> None:
        nonlocal run
        decision = decide(now, run, signal, Limits())
        run = decision.run

    generation = run.generation
    after(Restarted())
    assert not run.state.is_terminal
    trains_on = run.placement
    assert trains_on is not None
    lost = trains_on.plan.node_ids[0]
    after(NodeLost(node_id=lost, fault_time=now.time, reason="its power is gone", gone=True))

    assert run.state in (JobState.RECOVERING, JobState.WAITING)
    assert run.transition is not None
    assert run.transition.phase is Phase.QUIESCING
    assert run.transition.history.cause is Cause.NODE_LOST
    assert lost in run.transition.history.nodes_lost
    assert run.generation > generation


async def test_older_recoveries_have_no_figures_that_they_did_not_have(
    old: sqlite3.Connection, upgraded: SqlDatabase
) -> None:
    ((count,),) = old.execute("SELECT count(*) FROM recoveries")
    async with upgraded.unit_of_work() as work:
        page = await work.recoveries.page(JOB_ID, PageRequest(page_size=100))
    await upgraded.close()
    assert len(page.items) == count
    for each in page.items:
        figures = (
            *(each.detect_seconds, each.fence_seconds, each.resume_seconds),
            *(each.regrow_seconds, each.idle_seconds, each.lost_seconds, each.hit_step),
        )
        assert set(figures) == {None}
