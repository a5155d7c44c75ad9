"""What nobody reads is not stored: seconds of a step, outcomes of directives, fields of a run."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("step_metrics") as step_metrics:
        step_metrics.drop_column("seconds")
    with op.batch_alter_table("directives") as directives:
        directives.drop_column("outcome")
    runs = sa.table("runs", sa.column("job_id"), sa.column("run", sa.JSON()))
    connection = op.get_bind()
    for job_id, text in connection.execute(
        sa.select(runs.c.job_id, sa.cast(runs.c.run, sa.Text()))
    ).all():
        run: dict[str, Any] = json.loads(text)
        _forget_unread(run)
        update = sa.update(runs).where(runs.c.job_id == job_id)
        connection.execute(update.values(run=json.dumps(run)))


def _forget_unread(run: dict[str, Any]) -> None:
    run.pop("create_time", None)
    run.pop("last_commit", None)
    transition = run["transition"] or {}
    for answers in (transition.get("staged", {}), transition.get("activated", {})):
        for answer in answers.values():
            answer.pop("num_communicators", None)
    answer = transition.get("answer") or {}
    answer.pop("candidates", None)
    for copy in answer.get("copies", ()):
        copy.pop("num_bytes", None)
