"""Nodes tell the run of their machine."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("boot_id", sa.String(64), nullable=False, server_default=""))
    with op.batch_alter_table("nodes") as batch:
        batch.alter_column("boot_id", server_default=None)
