"""Directives of old generations and request ids of long ago can be found, to be deleted.

Jobs that have ended are not looked at again: what they have left too much goes here.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "DELETE FROM directives WHERE state <> 'PENDING' AND generation <= "
        "(SELECT jobs.generation FROM jobs WHERE jobs.id = directives.job_id) - 8"
    )
    op.drop_index(op.f("ix_directives_state"), table_name="directives")
    op.create_index(
        op.f("ix_directives_state"), "directives", ["state", "job_id", "generation"], unique=False
    )
    with op.batch_alter_table("request_ids") as request_ids:
        # Requests that were made before count from now on.
        request_ids.add_column(
            sa.Column(
                "create_time",
                sa.DateTime(timezone=True),
                server_default=sa.func.current_timestamp(),
                nullable=False,
            )
        )
    with op.batch_alter_table("request_ids") as request_ids:
        request_ids.alter_column("create_time", server_default=None)
    op.create_index(
        op.f("ix_request_ids_create_time"), "request_ids", ["create_time"], unique=False
    )
