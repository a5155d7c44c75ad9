"""The resources of REST: protos/planaria/api/coordinator/v1/resources.proto as JSON.

Field names are those of the protos, enums have no prefix, what is absent is null. The coordinator
builds its answers from these classes, so they have exactly these fields; a client reads the answers
with the same classes, requires each field, and ignores fields that a newer coordinator adds.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PlainSerializer

from planaria.errors import JobFailedError


def _rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


Time = Annotated[datetime, PlainSerializer(_rfc3339, return_type=str)]


class Body(BaseModel):
    """The base of answers: read from JSON, or from an object with attributes of these names."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)


class JobStateName(StrEnum):
    """The state of a job."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    WAITING = "WAITING"
    PAUSED = "PAUSED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended for good."""
        return self in (JobStateName.SUCCEEDED, JobStateName.FAILED, JobStateName.CANCELLED)


class NodeStateName(StrEnum):
    """The state of a node."""

    READY = "READY"
    CORDONED = "CORDONED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    LOST = "LOST"


class JobError(Body):
    """Why a job failed."""

    reason: str = Field(description="One of the documented reasons.")
    message: str = Field(description="One sentence.")


class Condition(Body):
    """What is to be known of a job besides its state."""

    type: str = Field(
        description="NODES_SILENT: nodes of the job say nothing and cannot be taken to be lost. "
        "NODES_LEFT_OUT: the job does without nodes for a while, because others cannot reach them."
    )
    message: str = Field(description="One sentence.")
    node_ids: tuple[str, ...] = Field(description="The nodes.")
    since_time: Time = Field(description="Since when it holds of the first of them.")


class Job(Body):
    """A training job."""

    id: str
    name: str = Field(description="From the job file.")
    state: JobStateName
    step: int = Field(description="Number of committed steps.")
    steps: int = Field(description="Number of steps to train.")
    loss: float | None = Field(description="Mean loss of the last committed step.")
    generation: int = Field(description="The generation of its plan.")
    tokens_per_second: float = Field(description="Over the last steps.")
    goodput: float | None = Field(
        description="Share of the wall-clock time since the first step began in which the job "
        "trained. A step that a loss makes longer counts in full; see a recovery's `lost_seconds`."
    )
    final_digest: str = Field(
        description="SHA-256 of the final parameters, hexadecimal; empty before the end."
    )
    error: JobError | None = Field(description="Why it failed.")
    create_time: Time = Field(description="When it was submitted.")
    start_time: Time | None = Field(description="When the first step began.")
    end_time: Time | None = Field(description="When it ended.")
    spec: dict[str, Any] = Field(description="The job file.")
    fault_tolerance: int = Field(description="How many nodes may be lost at once now.")
    time_seconds: dict[str, float] = Field(
        description="Seconds of wall-clock time by what they went to."
    )
    evaluation_loss: float | None = Field(
        description="Mean loss of the newest evaluation; null before the first."
    )
    evaluation_step: int | None = Field(
        description="Number of committed steps in the parameters that were evaluated then."
    )
    waiting_reason: str = Field(
        description="Why it is PENDING or WAITING, in words; empty in every other state."
    )
    num_skipped_steps: int = Field(
        description="Number of committed steps that were skipped: a gradient or the loss was not "
        "finite or too large, and no parameter was changed."
    )
    conditions: tuple[Condition, ...] = Field(
        description="What is to be known of it besides its state."
    )

    @property
    def is_done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.state.is_terminal

    @property
    def num_commits(self) -> int:
        """Number of its StepMetrics in the end: the last evaluation adds one after the steps."""
        return self.steps + (self.spec.get("evaluation") is not None)

    def raise_unless_succeeded(self) -> None:
        """Raise JobFailedError unless it ended as SUCCEEDED."""
        if self.state != "SUCCEEDED":
            raise JobFailedError(
                self.error.message if self.error else f"job {self.id} is {self.state}",
                reason=self.error.reason if self.error else self.state,
                metadata={"job_id": self.id, "state": self.state},
            )


class NodeEngine(Body):
    """An engine of a node."""

    id: str = Field(validation_alias=AliasChoices("id", "engine_id"))
    job_id: str
    accelerator: int = Field(description="Index of its accelerator.")
    pid: int = Field(description="Process id.")
    state: str = Field(description="STARTING, PARKED, REBUILDING, TRAINING or FINISHED.")


class Node(Body):
    """A machine."""

    id: str = Field(description="The name its agent was given.")
    state: NodeStateName
    address: str = Field(description="Under which other nodes reach it.")
    num_accelerators: int
    accelerator_kind: str = Field(description="cpu or cuda.")
    version: str = Field(description="Version of its agent.")
    agent_pid: int = Field(description="Process id of its agent.")
    engines: tuple[NodeEngine, ...]
    heartbeat_time: Time | None = Field(description="The last heartbeat.")
    join_time: Time = Field(description="When it first joined.")
    accelerator_memory_bytes: int = Field(description="Memory of one accelerator.")
    labels: dict[str, str] = Field(description="What its agent was told of it: rack, zone, owner.")
    silent_since_time: Time | None = Field(
        description="Since when nothing has been heard of it, while it is silent and not lost."
    )


class Event(Body):
    """Something that happened."""

    sequence: int = Field(description="Position in the coordinator's order; grows by one.")
    time: Time
    type: str = Field(description="snake_case, such as node_lost or recovery_finished.")
    job_id: str = Field(description="The job, where there is one; else empty.")
    node_id: str = Field(description="The node, where there is one; else empty.")
    generation: int = Field(description="The generation, where there is one; else 0.")
    message: str = Field(description="One sentence for people.")
    details: dict[str, Any] = Field(description="The values in the message and more.")


class StepMetrics(Body):
    """A committed step."""

    step: int = Field(description="Counted from 0.")
    loss: float | None = Field(
        description="Mean over the step's tokens; null when it trained nothing: it was skipped, or "
        "follows the last step to evaluate the last parameters."
    )
    gradient_norm: float = Field(description="Before clipping.")
    learning_rate: float
    num_tokens: int
    step_seconds: float = Field(description="Wall seconds of the step.")
    generation: int = Field(description="Of the plan that computed it.")
    commit_time: Time = Field(description="When it was committed.")
    tokens_per_second: float
    model_flops_utilization: float | None = Field(
        description="Of what the plan's accelerators could do; null when it is not known."
    )
    evaluation_loss: float | None = Field(
        description="Mean over the held-out tokens, of the parameters that the step began with; "
        "null when it did not evaluate."
    )
    skipped_layer: int | None = Field(
        description="The lowest layer with a gradient that was not finite or too large, the last "
        "one for a loss; null unless the step was skipped, and so changed no parameter."
    )


class RecoveryPhase(Body):
    """A phase of a recovery."""

    name: str = Field(description="detect, quiesce, plan, rebuild, copy or activate.")
    start_time: Time
    duration_seconds: float


class Recovery(Body):
    """A change from one plan to the next."""

    id: int = Field(description="Position among the job's recoveries, from 1.")
    cause: str = Field(description="node_lost, engine_lost, node_joined, node_drained, resumed.")
    nodes_lost: tuple[str, ...]
    nodes_joined: tuple[str, ...]
    generation: int = Field(description="The generation it led to.")
    redone_microbatches: int = Field(
        description="Microbatches that a survivor had computed and that were computed again; "
        "what the lost nodes had of the step is not known."
    )
    copied_bytes: int = Field(description="Bytes copied between engines.")
    phases: tuple[RecoveryPhase, ...] = Field(description="They may overlap.")
    detect_seconds: float | None = Field(
        description="From the fault until the loss was noticed. This and the next three are null "
        "when nothing was lost."
    )
    fence_seconds: float | None = Field(
        description="From the fault until the last survivor was fenced."
    )
    resume_seconds: float | None = Field(
        description="From the fault until all survivors took part in the step again; null when "
        "the recovery ended before that, as for the next one."
    )
    regrow_seconds: float | None = Field(
        description="From the fault until every survivor had a pipeline again."
    )
    idle_seconds: float | None = Field(
        description="How long nobody computed; null when that is not known."
    )
    lost_seconds: float | None = Field(
        description="The length of the step that was hit minus the median of the next 3 to 10 "
        "whole steps on the plan that finished it; null until they are done, or without them."
    )
    lost_accelerator_seconds: dict[str, float] = Field(description="By kind: idle, redone.")
    start_time: Time = Field(description="When the fault happened, as near as it is known.")
    end_time: Time | None = Field(
        description="When the last survivor that had lost its pipeline had one again; null "
        "while it lasts."
    )
    pipeline_sizes_before: tuple[int, ...] = Field(description="Nodes of each pipeline before.")
    pipeline_sizes_after: tuple[int, ...] = Field(description="Nodes of each pipeline after.")
    reason: str = Field(description="Why this plan, in words.")

    @property
    def figures(self) -> dict[str, float]:
        """The figures that are known, in s: detect, fence, resume, regrow, idle, lost."""
        named = {
            "detect": self.detect_seconds,
            "fence": self.fence_seconds,
            "resume": self.resume_seconds,
            "regrow": self.regrow_seconds,
            "idle": self.idle_seconds,
            "lost": self.lost_seconds,
        }
        return {name: seconds for name, seconds in named.items() if seconds is not None}


class LogLine(Body):
    """A line of a job's log."""

    sequence: int = Field(description="Position in the job's log.")
    time: Time = Field(description="When it was read.")
    engine_id: str = Field(description="The engine that wrote it.")
    text: str


class Stage(Body):
    """Consecutive layers on accelerators of one node."""

    first_layer: int = Field(description="Counted from the embedding (0).")
    num_layers: int
    node_index: int = Field(description="Index of the node within its pipeline.")
    node_id: str
    accelerators: tuple[int, ...] = Field(description="Indices of the node's accelerators.")


class Pipeline(Body):
    """A full replica of the model on named nodes."""

    stages: tuple[Stage, ...] = Field(description="In layer order.")
    microbatches: tuple[int, ...] = Field(description="Ids of those it runs in each step.")
    iteration_seconds: float = Field(description="Predicted seconds of one step.")
    max_microbatches: int = Field(
        description="Most microbatches of a step that fit in its memory; 0: memory never binds."
    )


class Plan(Body):
    """The pipelines of a job."""

    pipelines: tuple[Pipeline, ...]
    idle_node_ids: tuple[str, ...] = Field(description="Nodes that the job holds and leaves idle.")
    iteration_seconds: float = Field(description="Predicted seconds of one step.")
    fault_tolerance: int = Field(description="How many nodes may be lost at the same instant.")


class JobPlan(Body):
    """The plan of a job's newest generation."""

    plan: Plan | None = Field(description="null before the first.")
    generation: int
    reason: str = Field(description="Why this plan, in words.")


class DryRun(Body):
    """What submitting would do."""

    job: Job
    plan: Plan | None = Field(description="null while there are too few nodes.")
    reason: str = Field(description="Why this plan, or why none yet, in words.")


class Info(Body):
    """How to reach this cluster, and what it is."""

    version: str = Field(description="Of the package.")
    protocol_version: int = Field(description="Of the protocol between agents and coordinator.")
    grpc_endpoints: tuple[str, ...] = Field(description="HOST:PORT of the gRPC services.")
    http_url: str = Field(description="Of this server.")


class JobSubmission(BaseModel):
    """A job to train."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any] = Field(description="The job file; `planaria schema` describes it.")
    request_id: str = Field(
        default="", max_length=128, description="Chosen by the caller; repeating it is harmless."
    )
    dry_run: bool = Field(default=False, description="Only plan: nothing is stored or started.")
    resume_job_id: str = Field(
        default="",
        description="Begin from the newest checkpoint of this job, in place of the job file's "
        "init_from. 422 while it has completed none.",
    )


class Change(BaseModel):
    """A change of a job or node."""

    model_config = ConfigDict(extra="forbid")

    request_id: str = Field(
        default="", max_length=128, description="Chosen by the caller; repeating it is harmless."
    )
