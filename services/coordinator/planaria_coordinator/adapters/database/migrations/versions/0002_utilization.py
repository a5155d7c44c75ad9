"""Steps tell the model FLOPs utilisation."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("step_metrics", sa.Column("model_flops_utilization", sa.Double(), nullable=True))
