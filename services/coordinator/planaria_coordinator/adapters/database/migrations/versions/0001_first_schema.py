"""The first schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
DOCUMENT = sa.JSON().with_variant(JSONB(), "postgresql")
POSITION = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=96), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.create_table(
        "events",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("time", TIME, nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.String(length=253), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("details", DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job_id"), "events", ["job_id", "sequence"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("position", POSITION, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("tokens_per_second", sa.Double(), nullable=False),
        sa.Column("goodput", sa.Double(), nullable=True),
        sa.Column("final_digest", sa.String(length=64), nullable=False),
        sa.Column("error", DOCUMENT, nullable=True),
        sa.Column("create_time", TIME, nullable=False),
        sa.Column("start_time", TIME, nullable=True),
        sa.Column("end_time", TIME, nullable=True),
        sa.Column("spec", DOCUMENT, nullable=False),
        sa.Column("fault_tolerance", sa.Integer(), nullable=False),
        sa.Column("time_seconds", DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
    )
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=253), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("num_accelerators", sa.Integer(), nullable=False),
        sa.Column("accelerator_kind", sa.String(length=32), nullable=False),
        sa.Column("accelerator_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("agent_id", sa.String(length=64), nullable=False),
        sa.Column("agent_pid", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("join_time", TIME, nullable=False),
        sa.Column("heartbeat_time", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "request_ids",
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("method", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("resource_id", sa.String(length=253), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_request_ids")),
    )
    op.create_table(
        "directives",
        sa.Column("position", POSITION, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("engine_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.String(length=253), nullable=False),
        sa.Column("command", DOCUMENT, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("outcome", DOCUMENT, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_directives_job_id")),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_directives")),
        sa.UniqueConstraint("id", name=op.f("uq_directives_id")),
    )
    op.create_index(op.f("ix_directives_state"), "directives", ["state"], unique=False)
    op.create_table(
        "generations",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cause", sa.String(length=64), nullable=False),
        sa.Column("open_time", TIME, nullable=False),
        sa.Column("plan", DOCUMENT, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_generations_job_id")),
        sa.PrimaryKeyConstraint("job_id", "generation", name=op.f("pk_generations")),
    )
    op.create_table(
        "log_lines",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("engine_id", sa.Text(), nullable=False),
        sa.Column("time", TIME, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_log_lines_job_id")),
        sa.PrimaryKeyConstraint("job_id", "sequence", name=op.f("pk_log_lines")),
    )
    op.create_table(
        "recoveries",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cause", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("start_time", TIME, nullable=False),
        sa.Column("end_time", TIME, nullable=False),
        sa.Column("pause_seconds", sa.Double(), nullable=False),
        sa.Column("nodes_lost", DOCUMENT, nullable=False),
        sa.Column("nodes_joined", DOCUMENT, nullable=False),
        sa.Column("redone_microbatches", sa.BigInteger(), nullable=False),
        sa.Column("copied_bytes", sa.BigInteger(), nullable=False),
        sa.Column("phases", DOCUMENT, nullable=False),
        sa.Column("lost_accelerator_seconds", DOCUMENT, nullable=False),
        sa.Column("pipeline_sizes_before", DOCUMENT, nullable=False),
        sa.Column("pipeline_sizes_after", DOCUMENT, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_recoveries_job_id")),
        sa.PrimaryKeyConstraint("job_id", "id", name=op.f("pk_recoveries")),
    )
    op.create_table(
        "runs",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("run", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_runs_job_id")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_runs")),
    )
    op.create_table(
        "step_metrics",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("loss", sa.Double(), nullable=False),
        sa.Column("gradient_norm", sa.Double(), nullable=False),
        sa.Column("learning_rate", sa.Double(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("step_seconds", sa.Double(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("commit_time", TIME, nullable=False),
        sa.Column("seconds", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_step_metrics_job_id")),
        sa.PrimaryKeyConstraint("job_id", "step", name=op.f("pk_step_metrics")),
    )
    op.create_table(
        "transitions",
        sa.Column("position", POSITION, nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.String(length=32), nullable=False),
        sa.Column("time", TIME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_transitions_job_id")),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_transitions")),
    )
    op.create_index(
        op.f("ix_transitions_job_id"), "transitions", ["job_id", "generation"], unique=False
    )
