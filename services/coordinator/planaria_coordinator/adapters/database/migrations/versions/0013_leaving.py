"""Nodes know what they were before their agents were asked to end."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("state_before_leaving", sa.String(32)))
