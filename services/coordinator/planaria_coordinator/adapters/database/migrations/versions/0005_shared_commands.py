"""Store a command that many engines receive once."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("directives") as directives:
        directives.add_column(sa.Column("command_of", sa.String(length=64), nullable=True))
        directives.alter_column("command", existing_type=sa.JSON(), nullable=True)
    op.create_index(op.f("ix_directives_command_of"), "directives", ["command_of"], unique=False)
