"""The directive that has a plan staged is StagePlan: it was an Activate with `at_commit`."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_RUNS = sa.table("runs", sa.column("job_id"), sa.column("run", sa.JSON()))
_DIRECTIVES = sa.table("directives", sa.column("position"), sa.column("command", sa.JSON()))


def upgrade() -> None:
    _rewrite(_RUNS.c.job_id, _RUNS.c.run, _rename_awaited)
    _rewrite(_DIRECTIVES.c.position, _DIRECTIVES.c.command, _split_activate)


def _rewrite(key: Any, column: Any, change: Any) -> None:
    connection = op.get_bind()
    text = sa.cast(column, sa.Text())
    query = sa.select(key, text).where(text.like('%"activate"%'))
    for value, stored in connection.execute(query).all():
        document = json.loads(stored)
        change(document)
        update = sa.update(column.table).where(key == value)
        connection.execute(update.values({column.name: json.dumps(document)}))


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
