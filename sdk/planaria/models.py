"""The coordinator's resources as REST shows them: read-only, and tolerant of fields to come."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from planaria.errors import JobFailedError

TERMINAL_STATES = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


class _Resource(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class JobError(_Resource):
    """Why a job failed."""

    reason: str
    message: str


class Job(_Resource):
    """A training job."""

    id: str
    name: str
    state: str
    """PENDING, STARTING, RUNNING, RECOVERING, WAITING, PAUSED, SUCCEEDED, FAILED or CANCELLED."""
    step: int = 0
    """Number of committed steps."""
    steps: int
    """Number of steps to train."""
    loss: float | None = None
    """Mean loss of the last committed step."""
    evaluation_loss: float | None = None
    """Mean loss of the newest evaluation; None before the first."""
    evaluation_step: int | None = None
    """Number of committed steps in the parameters that were evaluated then."""
    generation: int = 0
    """Version of its plan."""
    tokens_per_second: float = 0.0
    goodput: float | None = None
    """Productive share of the wall-clock time since the first step began."""
    final_digest: str = ""
    """SHA-256 of the final parameters, hexadecimal; empty before the end."""
    error: JobError | None = None
    create_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    spec: dict[str, Any] = {}
    """The job file."""
    fault_tolerance: int = 0
    """How many nodes may be lost at once now."""
    time_seconds: dict[str, float] = {}
    """Wall-clock seconds by what they went to."""
    waiting_reason: str = ""
    """Why it is PENDING or WAITING, in words; empty in every other state."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.state in TERMINAL_STATES

    @property
    def num_commits(self) -> int:
        """Number of its StepMetrics in the end: one for the last evaluation is behind the steps."""
        return self.steps + (self.spec.get("evaluation") is not None)

    def raise_unless_succeeded(self) -> None:
        """Raise JobFailedError when it ended as FAILED or CANCELLED, or goes on."""
        if self.state != "SUCCEEDED":
            raise JobFailedError(
                self.error.message if self.error else f"job {self.id} is {self.state}",
                reason=self.error.reason if self.error else self.state,
                metadata={"job_id": self.id, "state": self.state},
            )


class NodeEngine(_Resource):
    """An engine of a node."""

    id: str
    job_id: str
    accelerator: int
    pid: int
    state: str


class Node(_Resource):
    """A machine."""

    id: str
    state: str
    """READY, CORDONED, DRAINING, DRAINED or LOST."""
    address: str = ""
    num_accelerators: int = 0
    accelerator_kind: str = ""
    version: str = ""
    agent_pid: int = 0
    engines: tuple[NodeEngine, ...] = ()
    heartbeat_time: datetime | None = None
    join_time: datetime | None = None


class Event(_Resource):
    """Something that happened."""

    sequence: int
    """Position in the coordinator's order; following an event stream resumes after it."""
    time: datetime | None = None
    type: str
    """snake_case, such as node_lost."""
    job_id: str = ""
    node_id: str = ""
    generation: int = 0
    message: str = ""
    details: dict[str, Any] = {}


class StepMetrics(_Resource):
    """A committed step."""

    step: int
    """Counted from 0."""
    loss: float | None = None
    """None when it trained nothing: behind the last step the last parameters are evaluated."""
    evaluation_loss: float | None = None
    """On sequences that are never trained on, of the parameters that the step began with; None when
    it did not evaluate."""
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    num_tokens: int = 0
    step_seconds: float = 0.0
    tokens_per_second: float = 0.0
    model_flops_utilization: float | None = None
    """Of what the plan's accelerators could do; None when it is not known."""
    generation: int = 0
    commit_time: datetime | None = None


class RecoveryPhase(_Resource):
    """A phase of a recovery: detect, quiesce, plan, rebuild, copy or resume."""

    name: str
    start_time: datetime | None = None
    duration_seconds: float = 0.0


class Recovery(_Resource):
    """A change from one plan to the next."""

    id: int
    cause: str
    nodes_lost: tuple[str, ...] = ()
    nodes_joined: tuple[str, ...] = ()
    generation: int = 0
    redone_microbatches: int = 0
    copied_bytes: int = 0
    phases: tuple[RecoveryPhase, ...] = ()
    pause_seconds: float = 0.0
    """From the fault until the last surviving engine that had to stop could take part again."""
    lost_accelerator_seconds: dict[str, float] = {}
    start_time: datetime | None = None
    end_time: datetime | None = None
    """When the last survivor that had lost its pipeline had a place again."""
    pipeline_sizes_before: tuple[int, ...] = ()
    pipeline_sizes_after: tuple[int, ...] = ()
    reason: str = ""

    @property
    def seconds(self) -> float:
        """Length in s; 0 while it lasts."""
        if self.start_time is None or self.end_time is None:
            return 0.0
        return (self.end_time - self.start_time).total_seconds()


class LogLine(_Resource):
    """A line of a job's log."""

    sequence: int
    time: datetime | None = None
    engine_id: str = ""
    text: str


class Stage(_Resource):
    """Consecutive layers on accelerators of one node."""

    first_layer: int
    num_layers: int
    node_index: int = 0
    node_id: str = ""
    accelerators: tuple[int, ...] = ()


class Pipeline(_Resource):
    """A full replica of the model."""

    stages: tuple[Stage, ...]
    microbatches: tuple[int, ...] = ()
    iteration_seconds: float = 0.0
    max_microbatches: int = 0


class Plan(_Resource):
    """The pipelines of a job."""

    pipelines: tuple[Pipeline, ...] = ()
    idle_node_ids: tuple[str, ...] = ()
    iteration_seconds: float = 0.0
    fault_tolerance: int = 0


class JobPlan(_Resource):
    """The plan of a job's newest generation, and why it was chosen."""

    plan: Plan | None = None
    generation: int = 0
    reason: str = ""


class DryRun(_Resource):
    """What a job would do: nothing is stored or started."""

    job: Job
    plan: Plan | None = None


class ClusterInfo(_Resource):
    """Where the coordinator is and what it speaks."""

    version: str
    protocol_version: int = 0
    grpc_endpoints: tuple[str, ...] = ()
    http_url: str = ""
