"""The directive that makes late engines commit a step is RollForward: Commit was its first name."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_RUNS = sa.table("runs", sa.column("job_id"), sa.column("run", sa.JSON()))
_DIRECTIVES = sa.table(
    "directives",
    sa.column("position"),
    sa.column("command", sa.JSON()),
    sa.column("outcome", sa.JSON()),
)
_KINDS = {"commit": "roll_forward", "committed": "rolled_forward"}


def upgrade() -> None:
    _rewrite(_RUNS.c.job_id, _RUNS.c.run, rename_in_run)
    for column in (_DIRECTIVES.c.command, _DIRECTIVES.c.outcome):
        _rewrite(_DIRECTIVES.c.position, column, rename_kind)


def _rewrite(key: Any, column: Any, rename: Any) -> None:
    connection = op.get_bind()
    text = sa.cast(column, sa.Text())
    is_old = sa.or_(*(text.like(f'%"{word}"%') for word in (*_KINDS, "COMMITTING")))
    for value, stored in connection.execute(sa.select(key, text).where(is_old)).all():
        document = json.loads(stored)
        rename(document)
        update = sa.update(column.table).where(key == value)
        connection.execute(update.values({column.name: json.dumps(document)}))


def rename_in_run(run: dict[str, Any]) -> None:
    """Rename what is awaited, and the phase of a transition and those before it."""
    for pending in run["pending"].values():
        rename_kind(pending)
    transition = run["transition"]
    if transition is not None:
        transition["phase"] = _phase(transition["phase"])
        starts = transition["phase_starts"]
        transition["phase_starts"] = [[_phase(phase), time] for phase, time in starts]


def rename_kind(document: dict[str, Any]) -> None:
    """Rename the kind of a directive or of its outcome."""
    document["kind"] = _KINDS.get(document["kind"], document["kind"])


def _phase(phase: str) -> str:
    return "ROLLING_FORWARD" if phase == "COMMITTING" else phase
