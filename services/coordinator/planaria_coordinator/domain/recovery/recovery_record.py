"""The record of a recovery or of a planned change: what it cost."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPhase:
    """A phase: detect, quiesce, plan, rebuild, copy or activate. Phases may overlap."""

    name: str
    start_time: datetime
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A recovery, or a planned change from one plan to the next; stored when it is finished.

    That an engine's death was that of its node may be known only later: then it is stored again.
    """

    job_id: str
    id: int
    """Position among the job's recoveries, from 1."""
    cause: str
    generation: int
    start_time: datetime
    """When the fault happened, as near as it is known."""
    end_time: datetime
    """When the last survivor that had lost its pipeline had one again."""
    detect_seconds: float | None = None
    """This and the next five: docs/explanation/protocol/recovery.md#what-it-costs."""
    fence_seconds: float | None = None
    resume_seconds: float | None = None
    regrow_seconds: float | None = None
    idle_seconds: float | None = None
    lost_seconds: float | None = None
    hit_step: int | None = None
    """The step that was hit."""
    nodes_lost: tuple[str, ...] = ()
    nodes_joined: tuple[str, ...] = ()
    redone_microbatches: int = 0
    copied_bytes: int = 0
    phases: tuple[RecoveryPhase, ...] = ()
    lost_accelerator_seconds: dict[str, float] = field(default_factory=dict)
    """By kind: idle, redone."""
    pipeline_sizes_before: tuple[int, ...] = ()
    pipeline_sizes_after: tuple[int, ...] = ()
    reason: str = ""
    """Why this plan, in words."""
