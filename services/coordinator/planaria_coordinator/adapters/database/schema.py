"""The tables. Columns have the names of the dataclasses' fields that they hold."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Enum,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from planaria_coordinator.adapters.database.columns import Document, Position, UtcTime
from planaria_coordinator.domain.engines.directive import Command
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.job import JobError, JobState
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.recovery.recovery_record import RecoveryPhase

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _name_of(enum: type[JobState] | type[NodeState]) -> Enum:
    # Plain text: a new state needs no migration.
    return Enum(enum, native_enum=False, create_constraint=False, length=32)


def _job_id(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "job_id", String(64), ForeignKey("jobs.id"), primary_key=primary_key, nullable=False
    )


JOBS = Table(
    "jobs",
    METADATA,
    Column("position", Position, primary_key=True),
    Column("id", String(64), unique=True, nullable=False),
    Column("name", Text, nullable=False),
    Column("state", _name_of(JobState), nullable=False, index=True),
    Column("step", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("loss", Double),
    Column("evaluation_loss", Double),
    Column("evaluation_step", BigInteger),
    Column("generation", BigInteger, nullable=False),
    Column("tokens_per_second", Double, nullable=False),
    Column("goodput", Double),
    Column("final_digest", String(64), nullable=False),
    Column("error", Document(JobError)),
    Column("create_time", UtcTime, nullable=False),
    Column("start_time", UtcTime),
    Column("end_time", UtcTime),
    Column("spec", Document(dict[str, Any]), nullable=False),
    Column("fault_tolerance", Integer, nullable=False),
    Column("time_seconds", Document(dict[str, float]), nullable=False),
    Column("num_skipped_steps", BigInteger, nullable=False, server_default="0"),
)

RUNS = Table(
    "runs",
    METADATA,
    _job_id(primary_key=True),
    Column("run", Document(JobRun), nullable=False),
)

NODES = Table(
    "nodes",
    METADATA,
    Column("id", String(253), primary_key=True),
    Column("state", _name_of(NodeState), nullable=False),
    Column("address", Text, nullable=False),
    Column("num_accelerators", Integer, nullable=False),
    Column("accelerator_kind", String(32), nullable=False),
    Column("accelerator_memory_bytes", BigInteger, nullable=False),
    Column("agent_id", String(64), nullable=False),
    Column("agent_pid", BigInteger, nullable=False),
    Column("version", String(64), nullable=False),
    Column("boot_id", String(64), nullable=False),
    Column("labels", Document(dict[str, str]), nullable=False),
    Column("state_before_leaving", _name_of(NodeState)),
    Column("join_time", UtcTime, nullable=False),
    Column("heartbeat_time", UtcTime, nullable=False),
)

GENERATIONS = Table(
    "generations",
    METADATA,
    _job_id(primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("cause", String(64), nullable=False),
    Column("open_time", UtcTime, nullable=False),
    Column("plan", Document(Plan)),
    Column("reason", Text, nullable=False),
)

DIRECTIVES = Table(
    "directives",
    METADATA,
    Column("position", Position, primary_key=True),
    Column("id", String(64), unique=True, nullable=False),
    _job_id(),
    Column("generation", BigInteger, nullable=False),
    Column("engine_id", Text, nullable=False),
    Column("node_id", String(253), nullable=False),
    # A command that many engines receive is stored once: `command_of` names the directive that
    # has the command of one that has none.
    Column("command", Document(Command)),
    Column("command_of", String(64), index=True),
    # PENDING, RESOLVED (answered) or SUPERSEDED.
    Column("state", String(16), nullable=False),
    # One index for those pending and for those that are old: every recovery waits for its upkeep.
    Index(None, "state", "job_id", "generation"),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("time", UtcTime, nullable=False),
    Column("type", String(64), nullable=False),
    Column("message", Text, nullable=False),
    Column("job_id", String(64), nullable=False),
    Column("node_id", String(253), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("details", Document(dict[str, Any]), nullable=False),
    Index(None, "job_id", "sequence"),
)

RECOVERIES = Table(
    "recoveries",
    METADATA,
    _job_id(primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("cause", String(64), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("start_time", UtcTime, nullable=False),
    Column("end_time", UtcTime, nullable=False),
    Column("detect_seconds", Double, nullable=True),
    Column("fence_seconds", Double, nullable=True),
    Column("resume_seconds", Double, nullable=True),
    Column("regrow_seconds", Double, nullable=True),
    Column("idle_seconds", Double, nullable=True),
    Column("lost_seconds", Double, nullable=True),
    Column("hit_step", BigInteger, nullable=True),
    Column("nodes_lost", Document(tuple[str, ...]), nullable=False),
    Column("nodes_joined", Document(tuple[str, ...]), nullable=False),
    Column("redone_microbatches", BigInteger, nullable=False),
    Column("copied_bytes", BigInteger, nullable=False),
    Column("phases", Document(tuple[RecoveryPhase, ...]), nullable=False),
    Column("lost_accelerator_seconds", Document(dict[str, float]), nullable=False),
    Column("pipeline_sizes_before", Document(tuple[int, ...]), nullable=False),
    Column("pipeline_sizes_after", Document(tuple[int, ...]), nullable=False),
    Column("reason", Text, nullable=False),
)

STEP_METRICS = Table(
    "step_metrics",
    METADATA,
    _job_id(primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("loss", Double, nullable=True),
    Column("gradient_norm", Double, nullable=False),
    Column("learning_rate", Double, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("step_seconds", Double, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("commit_time", UtcTime, nullable=False),
    Column("model_flops_utilization", Double, nullable=True),
    Column("evaluation_loss", Double, nullable=True),
    Column("skipped_layer", Integer, nullable=True),
)

LOG_LINES = Table(
    "log_lines",
    METADATA,
    _job_id(primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("engine_id", Text, nullable=False),
    Column("time", UtcTime, nullable=False),
    Column("text", Text, nullable=False),
)

REQUEST_IDS = Table(
    "request_ids",
    METADATA,
    Column("request_id", String(128), primary_key=True),
    Column("method", String(64), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("resource_id", String(253), nullable=False),
    Column("create_time", UtcTime, nullable=False, index=True),
)

COUNTERS = Table(
    "counters",
    METADATA,
    # "events", or "log_lines/" and a job's id.
    Column("name", String(96), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

LEADERSHIP = Table(
    "leadership",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
)
"""One row: the coordinator that raised it last may write."""
