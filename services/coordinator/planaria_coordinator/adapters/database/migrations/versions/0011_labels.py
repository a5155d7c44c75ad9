"""Nodes have labels."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from planaria_coordinator.adapters.database.columns import Document

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    labels: sa.Column[Any] = sa.Column(
        "labels", Document(dict[str, str]), nullable=False, server_default="{}"
    )
    op.add_column("nodes", labels)
    with op.batch_alter_table("nodes") as batch:
        batch.alter_column("labels", server_default=None)
