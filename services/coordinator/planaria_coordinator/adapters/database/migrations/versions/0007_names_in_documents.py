"""Stored documents use the names of the glossary: initial state, time account, history, faults."""

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_RUNS = sa.table("runs", sa.column("job_id"), sa.column("run", sa.JSON()))
_DIRECTIVES = sa.table(
    "directives",
    sa.column("position"),
    sa.column("command", sa.JSON()),
    sa.column("outcome", sa.JSON()),
)


def upgrade() -> None:
    _rewrite(_RUNS, "job_id", "run", rename_in_run)
    _rewrite(_DIRECTIVES, "position", "command", rename_in_command, "prepare", "copy")
    _rewrite(_DIRECTIVES, "position", "outcome", rename_in_outcome, "prepared")


def _rewrite(
    table: sa.TableClause,
    key_name: str,
    name: str,
    rename: Callable[[dict[str, Any]], None],
    *kinds: str,
) -> None:
    """Change the documents of a column, of some kinds where kinds are given."""
    connection = op.get_bind()
    key, column = table.c[key_name], table.c[name]
    text = sa.cast(column, sa.Text())
    of_kinds = sa.or_(*(text.like(f'%"{kind}"%') for kind in kinds)) if kinds else sa.true()
    query = sa.select(key, text).where(column.is_not(None), of_kinds)
    for value, stored in connection.execute(query).all():
        document: dict[str, Any] | None = json.loads(stored)
        if document is None:
            continue
        rename(document)
        update = sa.update(table).where(key == value)
        connection.execute(update.values({name: json.dumps(document)}))


def rename_in_run(run: dict[str, Any]) -> None:
    """Rename the fields of a job's run."""
    _rename(run, base="initial_state", ledger="time_account")
    _rename(run, num_losses="num_faults", last_loss="last_fault")
    for engine in run.get("engines", {}).values():
        _rename(engine, base="initial_state")
    transition = run.get("transition") or {}
    _rename(transition, story="history", ledger_before="time_account_before")
    _rename(transition, is_ahead="plans_online")
    for placement in (run.get("placement"), run.get("candidate"), transition.get("target")):
        _rename(placement or {}, places="stage_engines")


def rename_in_command(command: dict[str, Any]) -> None:
    """A job's initial state is named; a layer without an address is one of it."""
    match command["kind"]:
        case "prepare":
            _rename(command, base="initial_state")
        case "copy":
            layers = command["layers"]
            command["layers"] = [source for source in layers if source["addresses"]]
            initial_layers = [source["layer"] for source in layers if not source["addresses"]]
            command["initial_layers"] = initial_layers


def rename_in_outcome(outcome: dict[str, Any]) -> None:
    """What an engine found its job to begin from is an initial state."""
    if outcome["kind"] == "prepared":
        _rename(outcome, base="initial_state")


def _rename(document: dict[str, Any], **names: str) -> None:
    for old, new in names.items():
        if old in document:
            document[new] = document.pop(old)
