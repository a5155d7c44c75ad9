"""A job, as users see it."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from planaria.models import JobStateName
from planaria_common.errors import ErrorReason

JobState = JobStateName


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Why a job failed."""

    reason: ErrorReason
    message: str
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How well parameters do on sequences that are never trained on."""

    step: int
    """Number of committed steps in the parameters."""
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What is to be known of a job besides its state."""

    type: str
    """NODES_SILENT or NODES_LEFT_OUT."""
    message: str
    node_ids: tuple[str, ...]
    since_time: datetime
    """Since when it holds of the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job: what REST and gRPC show of it."""

    id: str
    name: str
    state: JobState
    steps: int
    spec: dict[str, Any]
    """The job file, completed with its defaults."""
    create_time: datetime
    step: int = 0
    """Number of committed steps."""
    loss: float | None = None
    """Mean loss of the last committed step."""
    evaluation_loss: float | None = None
    """Mean loss of the newest evaluation; None before the first."""
    evaluation_step: int | None = None
    """Number of committed steps in the parameters that were evaluated then."""
    generation: int = 0
    """The newest generation; 0 before the first."""
    tokens_per_second: float = 0.0
    goodput: float | None = None
    """Productive share of the wall-clock time since the first step began."""
    final_digest: str = ""
    error: JobError | None = None
    start_time: datetime | None = None
    """When the first step began."""
    end_time: datetime | None = None
    fault_tolerance: int = 0
    """How many nodes may be lost at once now."""
    time_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of wall-clock time by name; they add up to the time since submission."""
    waiting_reason: str = ""
    """Why it is PENDING or WAITING; empty in every other state."""
    num_skipped_steps: int = 0
    """Committed steps that changed no parameter: a gradient or the loss was not finite or too
    large."""
    conditions: tuple[Condition, ...] = ()
    """Filled in from memory by the services; repositories need not store it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """A committed step; one record for each (job, step)."""

    job_id: str
    step: int
    """Counted from 0."""
    loss: float | None
    """None when it trained nothing: it was skipped, or only evaluates, after the last step."""
    gradient_norm: float
    learning_rate: float
    num_tokens: int
    step_seconds: float
    generation: int
    commit_time: datetime
    model_flops_utilization: float | None = None
    """Of the accelerators of the plan; None when it is not known."""
    evaluation_loss: float | None = None
    """Of the parameters that the step began with, on sequences that are never trained on; None when
    it did not evaluate."""
    skipped_layer: int | None = None
    """The lowest layer with a gradient that was not finite or too large, the last one for a loss;
    None unless the step was skipped."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens over the time of the step."""
        return self.num_tokens / self.step_seconds if self.step_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that an engine wrote."""

    job_id: str
    engine_id: str
    time: datetime
    """When the agent read it."""
    text: str
    sequence: int = 0
    """Position in the job's log, from 1; given by the repository."""
