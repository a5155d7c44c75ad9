"""One name has one meaning in what is stored, and what nobody reads is not stored.

The directive that makes late engines commit a step is RollForward: Commit was its first name.
StagePlan was an Activate with `at_commit`. The last phase of a recovery is called activate: it was
called resume, like a figure. A document may lack keys that came later than it, with a default.
"""

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("transitions")
    for table, column in (("step_metrics", "seconds"), ("directives", "outcome")):
        with op.batch_alter_table(table) as batch:
            batch.drop_column(column)
    _rewrite("runs", ("job_id",), "run", change_run)
    _rewrite("directives", ("position",), "command", change_command)
    _rewrite("recoveries", ("job_id", "id"), "phases", change_phases)


def _rewrite(
    table_name: str, key: tuple[str, ...], name: str, change: Callable[[Any], None]
) -> None:
    """Change the documents of a column."""
    columns: list[sa.ColumnClause[Any]] = [sa.column(each) for each in key]
    document = sa.column(name, sa.JSON())
    table = sa.table(table_name, *columns, document)
    connection = op.get_bind()
    query = sa.select(sa.cast(document, sa.Text()), *columns).where(document.is_not(None))
    for stored, *values in connection.execute(query).all():
        changed = json.loads(stored)
        if changed is None:
            continue
        change(changed)
        is_row = (column == value for column, value in zip(columns, values, strict=True))
        connection.execute(sa.update(table).where(*is_row).values({name: json.dumps(changed)}))


def change_run(run: dict[str, Any]) -> None:
    """Rename what is awaited and a transition's phase, and forget what nobody reads."""
    run.pop("create_time", None)
    run.pop("last_commit", None)
    transition = run.get("transition")
    # While engines stage a plan, no other Activate is awaited.
    is_staging = transition is not None and transition["phase"] == "STAGING"
    kinds = {"commit": "roll_forward"} | ({"activate": "stage_plan"} if is_staging else {})
    for pending in run.get("pending", {}).values():
        pending["kind"] = kinds.get(pending["kind"], pending["kind"])
    histories = [run.get("interrupted"), *run.get("suspected", {}).values()]
    if transition is not None:
        histories.append(transition.get("history"))
        _change_transition(transition)
    for history in histories:
        change_phases((history or {}).get("phases", []))


def _change_transition(transition: dict[str, Any]) -> None:
    if transition["phase"] == "COMMITTING":
        transition["phase"] = "ROLLING_FORWARD"
    transition.pop("phase_starts", None)
    for name in ("staged", "activated"):
        for answer in transition.get(name, {}).values():
            answer.pop("num_communicators", None)
    answer = transition.get("answer")
    if answer is not None:
        answer.pop("candidates", None)
        for copy in answer.get("copies", []):
            copy.pop("num_bytes", None)


def change_command(command: dict[str, Any]) -> None:
    """Rename Commit, and tell an Activate that had a plan staged from one that put it in force."""
    if command["kind"] == "commit":
        command["kind"] = "roll_forward"
    elif command["kind"] == "activate":
        is_staged = command.pop("at_commit", False)
        if is_staged:
            command["kind"] = "stage_plan"
        for name in ("committed_steps", "kept_groups") if is_staged else ("layers",):
            command.pop(name, None)


def change_phases(phases: list[dict[str, Any]]) -> None:
    """Rename the last phase of a recovery."""
    for phase in phases:
        if phase["name"] == "resume":
            phase["name"] = "activate"
