"""Figures of a recovery mean what their names say; what older rows do not have is null."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_FIGURES = ("detect", "fence", "resume", "regrow", "idle", "lost")


def upgrade() -> None:
    with op.batch_alter_table("recoveries") as recoveries:
        for name in _FIGURES:
            recoveries.add_column(sa.Column(f"{name}_seconds", sa.Double(), nullable=True))
        recoveries.add_column(sa.Column("hit_step", sa.BigInteger(), nullable=True))
        recoveries.drop_column("pause_seconds")
    _forget_pauses_of_runs()


def _forget_pauses_of_runs() -> None:
    """A run keeps recoveries that may turn out to be the loss of a whole node."""
    runs = sa.table("runs", sa.column("job_id"), sa.column("run", sa.JSON()))
    connection = op.get_bind()
    for job_id, text in connection.execute(
        sa.select(runs.c.job_id, sa.cast(runs.c.run, sa.Text()))
    ).all():
        run: dict[str, Any] = json.loads(text)
        if not run.get("suspected"):
            continue
        for recovery in run["suspected"].values():
            recovery.pop("pause_seconds", None)
        update = sa.update(runs).where(runs.c.job_id == job_id)
        connection.execute(update.values(run=json.dumps(run)))
