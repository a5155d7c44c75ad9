"""Steps may be skipped: each tells the layer, and a job how many."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("step_metrics", sa.Column("skipped_layer", sa.Integer(), nullable=True))
    # The table of jobs cannot be made again, which others refer to: the default stays.
    column = sa.Column("num_skipped_steps", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("jobs", column)
