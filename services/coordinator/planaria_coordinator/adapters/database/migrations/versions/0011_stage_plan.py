"""One name, one meaning: for the directive that has a plan staged, and for a recovery's last phase.

StagePlan was an Activate with `at_commit`. The phase `activate` was called `resume`, like a figure.
"""

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _rewrite("runs", ("job_id",), "run", "activate", _rename_awaited)
    _rewrite("directives", ("position",), "command", "activate", _split_activate)
    _rewrite("recoveries", ("job_id", "id"), "phases", "resume", _rename_phase)


def _rewrite(
    name: str, key: tuple[str, ...], document: str, word: str, change: Callable[[Any], None]
) -> None:
    """Change the documents of a table in which a word stands."""
    columns: list[sa.ColumnClause[Any]] = [sa.column(each) for each in key]
    table = sa.table(name, *columns, sa.column(document, sa.JSON()))
    text = sa.cast(table.c[document], sa.Text())
    connection = op.get_bind()
    rows = connection.execute(sa.select(text, *columns).where(text.like(f'%"{word}"%'))).all()
    for stored, *values in rows:
        changed = json.loads(stored)
        change(changed)
        is_row = (column == value for column, value in zip(columns, values, strict=True))
        update = sa.update(table).where(*is_row)
        connection.execute(update.values({document: json.dumps(changed)}))


def _rename_awaited(run: dict[str, Any]) -> None:
    """While engines stage a plan, no other Activate is awaited."""
    if run["transition"] is not None and run["transition"]["phase"] == "STAGING":
        for pending in run["pending"].values():
            if pending["kind"] == "activate":
                pending["kind"] = "stage_plan"


def _split_activate(command: dict[str, Any]) -> None:
    if command["kind"] != "activate":
        return
    if command.pop("at_commit"):
        command["kind"] = "stage_plan"
        del command["committed_steps"], command["kept_groups"]
    else:
        del command["layers"]


def _rename_phase(phases: list[dict[str, Any]]) -> None:
    for phase in phases:
        if phase["name"] == "resume":
            phase["name"] = "activate"
