"""Jobs and steps tell the loss on held-out sequences; a step that trains nothing has no other."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("evaluation_loss", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("evaluation_step", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("step_metrics") as step_metrics:
        step_metrics.add_column(sa.Column("evaluation_loss", sa.Double(), nullable=True))
        step_metrics.alter_column("loss", existing_type=sa.Double(), nullable=True)
