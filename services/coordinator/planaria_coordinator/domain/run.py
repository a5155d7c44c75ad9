"""The state of a job's state machine: everything that `transition.decide` knows of a job.

It is stored as one document with every decision that others are told of. What is only collected
within a phase (reports, acknowledgements) may be lost with the coordinator: after its crash a new
generation collects again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from planaria_coordinator.domain.checkpoint import Checkpoint
from planaria_coordinator.domain.directive import (
    Activated,
    Base,
    CommitRecord,
    Copied,
    FenceReport,
    MeasuredLayer,
    QuiesceMode,
    Staged,
)
from planaria_coordinator.domain.job import Evaluation, JobError, JobState
from planaria_coordinator.domain.ledger import Ledger
from planaria_coordinator.domain.plan import Plan
from planaria_coordinator.domain.planning import PlanAnswer, PlanQuery
from planaria_coordinator.domain.recovery import RecoveryPhase
from planaria_coordinator.domain.requirements import NodeFacts, Requirements


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment on both clocks: deadlines go by `seconds`, people and engines by `time`."""

    seconds: float
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    directive_seconds: float = 5.0
    prepare_seconds: float = 120.0
    at_commit_seconds: float = 60.0
    """Until a step's end is no longer waited for; ten times the last step where that is more."""
    disturbance_seconds: float = 0.25
    """How long broken communicators wait for news of the death that mostly broke them."""
    copy_bytes_per_second: float = 20e6
    """Slower copies, digests and exports count as hanging."""
    num_attempts: int = 3
    """How often a thing is tried before it is given up: starting an engine, a transition."""
    failure_window_seconds: float = 3600.0
    """Engines of a node that failed longer ago no longer speak against it."""


class Cause(StrEnum):
    """Why a transition was opened."""

    START = "start"
    NODE_LOST = "node_lost"
    ENGINE_LOST = "engine_lost"
    NODE_JOINED = "node_joined"
    NODE_DRAINED = "node_drained"
    PAUSED = "paused"
    RESUMED = "resumed"
    FINISHED = "finished"


class Phase(StrEnum):
    """Where a transition is; docs/design.md has the table."""

    PREPARING = "PREPARING"
    QUIESCING = "QUIESCING"
    COMMITTING = "COMMITTING"
    PLANNING = "PLANNING"
    COPYING = "COPYING"
    ACTIVATING = "ACTIVATING"
    STAGING = "STAGING"
    SWITCHING = "SWITCHING"
    DIGESTING = "DIGESTING"
    CHECKPOINTING = "CHECKPOINTING"
    EXPORTING = "EXPORTING"


DirectiveKind = Literal[
    "prepare",
    "quiesce",
    "commit",
    "copy",
    "activate",
    "switch",
    "digest_layers",
    "export",
    "write_checkpoint",
    "seal_checkpoint",
    "discard_checkpoint",
    "stop",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A directive that has no result yet."""

    directive_id: str
    engine_id: str
    node_id: str
    kind: DirectiveKind
    deadline_seconds: float
    """On the monotonic clock."""
    allowed_seconds: float
    """What the deadline was set by."""
    num_attempt: int = 1
    version: int = 0
    """Of a checkpoint's directive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that is alive, as far as is known."""

    id: str
    node_id: str
    accelerator: int
    prepared: bool = False
    data_address: str = ""
    store_address: str = ""
    data_digest: str = ""
    fingerprint: dict[str, str] = field(default_factory=dict)
    measured_layers: tuple[MeasuredLayer, ...] = ()
    model_digest: str = ""
    peak_flops_per_second: float = 0.0
    base: Base | None = None


def make_engine_id(job_id: str, node_id: str, accelerator: int, number: int) -> str:
    """Return the id of an engine; `number` counts the job's engines, so no id is used twice."""
    return f"{job_id}/{node_id}/{accelerator}/{number}"


def node_of(engine_id: str) -> str:
    """Return the node that an engine is or was on."""
    return engine_id.split("/")[1]


Places = tuple[tuple[str, ...], ...]
"""The engine of each stage of each pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A plan that engines were told to take their places in."""

    generation: int
    plan: Plan
    places: Places
    reason: str
    resume_time: datetime | None = None
    """When its first engine could compute; None while that is not known."""
    followers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By engine: the layers whose sums it takes part in, though it computes nothing."""
    step_microbatches: tuple[tuple[int, ...], ...] = ()
    """Of each pipeline, for the step that was in flight; empty where no step was kept."""
    first_generations: tuple[int, ...] = ()
    """The generation since which each pipeline has been as it is; empty: all since this one."""
    plan_before: Plan | None = None
    """The plan before the loss, where this one only finishes a step: the next one follows it."""

    @property
    def engine_ids(self) -> frozenset[str]:
        """Every engine that steps cannot do without."""
        placed = (engine_id for pipeline in self.places for engine_id in pipeline)
        return frozenset((*placed, *self.followers))

    @property
    def plan_in_question(self) -> Plan:
        """The plan that the next one follows."""
        return self.plan_before or self.plan

    def first_generation(self, index: int) -> int:
        """Return the generation since which a pipeline has run unchanged."""
        return self.first_generations[index] if self.first_generations else self.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Communicators that broke, and nobody is known to be lost."""

    engine_id: str
    message: str
    fault_time: datetime
    deadline_seconds: float
    """When to act on it, on the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a transition is about; handed on when a later one takes its place."""

    cause: Cause
    start_time: datetime
    """When the fault happened or the change was asked for, as near as it is known."""
    first_open_time: datetime
    """When the first of its generations was opened."""
    nodes_lost: tuple[str, ...] = ()
    engines_lost: tuple[str, ...] = ()
    nodes_joined: tuple[str, ...] = ()
    sizes_before: tuple[int, ...] = ()
    num_attempts: int = 0
    """How often it was begun anew without a loss."""
    redone_by: tuple[str, ...] = ()
    """Engines whose work on the step in flight is counted, and that have begun no other since."""
    redone_microbatches: int = 0
    redone_seconds: float = 0.0
    """Seconds of computation thrown away, over all engines."""
    copied_bytes: int = 0
    stop_times: dict[str, datetime] = field(default_factory=dict)
    """By engine: since when it stands still, where whole pipelines have finished the step."""
    resume_time: datetime | None = None
    """When whole pipelines could go on to finish the step; None: there were none."""
    phases: tuple[RecoveryPhase, ...] = ()
    """Of the generation that finished the step."""
    staging_failed: bool = False
    """Some engine could not make its place ready beside training: all stand still to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change to a new generation, under way."""

    generation: int
    phase: Phase
    story: Story
    open_time: datetime
    horizon_seconds: float
    mode: QuiesceMode | None = None
    is_ahead: bool = False
    """The planner is asked while engines train; they are told nothing before it has answered."""
    ledger_before: Ledger | None = None
    """The job's time before the fault that whole pipelines compute through."""
    awaited_nodes: tuple[str, ...] = ()
    """Nodes whose engines must be prepared before the others are told."""
    participants: tuple[str, ...] = ()
    """Engines that were told to quiesce."""
    stopped: tuple[str, ...] = ()
    """Those of them that had a place: the ones that had to stop computing."""
    phase_starts: tuple[tuple[Phase, datetime], ...] = ()
    reports: dict[str, FenceReport] = field(default_factory=dict)
    fault_tolerance: int | None = None
    """What is asked of the planner when what the job wants has been refused."""
    failure: str = ""
    """Why some engine could not take its place."""
    target_steps: int = 0
    """T*: the version that everyone is brought to."""
    holdings: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By engine: its layers of version T*."""
    query: PlanQuery | None = None
    """What the planner was asked last."""
    answer: PlanAnswer | None = None
    asked_time: datetime | None = None
    answered_time: datetime | None = None
    target: Placement | None = None
    has_switched: bool = False
    """Reports show that the candidate is in force."""
    staged: dict[str, Staged] = field(default_factory=dict)
    copied: dict[str, Copied] = field(default_factory=dict)
    activated: dict[str, Activated] = field(default_factory=dict)
    digests: dict[str, dict[int, str]] = field(default_factory=dict)

    @property
    def finishes_step(self) -> bool:
        """Whether whole pipelines finish the step in flight; the others get places after it."""
        return self.target is not None and bool(self.target.step_microbatches)

    @property
    def copied_bytes(self) -> int:
        """Of layers that have arrived."""
        copied = sum(outcome.num_bytes for outcome in self.copied.values())
        return copied + sum(outcome.num_bytes for outcome in self.staged.values())

    @property
    def is_beside(self) -> bool:
        """Whether everybody trains on, whatever becomes of this transition."""
        return self.is_ahead or self.phase in (Phase.PREPARING, Phase.STAGING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A job's coordination."""

    job_id: str
    requirements: Requirements
    state: JobState
    ledger: Ledger
    create_time: datetime
    nodes_per_replica: int
    """n0: the fewest nodes that hold the model."""
    generation: int = 0
    """The newest ever written."""
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    """Nodes that the job holds."""
    draining: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    """Nodes that cannot serve this job, and why."""
    failure_times: dict[str, tuple[datetime, ...]] = field(default_factory=dict)
    """By node: when engines failed on their own."""
    engines: dict[str, Engine] = field(default_factory=dict)
    stopping: dict[str, str] = field(default_factory=dict)
    """Engines told to stop, and their nodes."""
    pending: dict[str, Pending] = field(default_factory=dict)
    placement: Placement | None = None
    """The newest plan that engines were told to take their places in at once."""
    candidate: Placement | None = None
    """What they were told to change to behind a commit: whether they have, only they know."""
    left_idle: tuple[str, ...] = ()
    """Engines that were ready when the planner was asked, and it kept the plan as it is.

    Until there is another plan, or somebody new who could change it, they are not offered again.
    """
    transition: Transition | None = None
    interrupted: Story | None = None
    """Of a recovery that waits for nodes."""
    waiting_reason: str = ""
    """Why it waits, or did before it began to start; empty once it runs."""
    pause_wanted: bool = False
    committed_steps: int = 0
    last_commit: CommitRecord | None = None
    last_commit_time: datetime | None = None
    last_step_seconds: float = 0.0
    data_digest: str = ""
    model_digest: str = ""
    fingerprint: dict[str, str] = field(default_factory=dict)
    reference_node_id: str = ""
    """The node that the digests and `fingerprint` were taken from."""
    base: Base | None = None
    """Where training begins; None: from the seed."""
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    """Those that are not complete yet, by version."""
    late_writers: tuple[str, ...] = ()
    """Engines that have not come back to a file since they said that their disk hangs."""
    checkpoint_floor: int = 0
    """The newest version that is complete or was given up."""
    newest_checkpoint: str = ""
    """The folder of the newest complete one."""
    newest_checkpoint_steps: int = 0
    """Number of committed steps in it."""
    announced_fault_tolerance: int | None = None
    num_losses: int = 0
    disturbance: Disturbance | None = None
    num_disturbances: int = 0
    """Communicators that broke with everyone alive, since the last committed step."""
    num_recoveries: int = 0
    evaluation: Evaluation | None = None
    """The newest that is known."""
    num_directives: int = 0
    num_engines: int = 0
    start_time: datetime | None = None
    end_time: datetime | None = None
    final_digest: str = ""
    error: JobError | None = None

    def with_evaluation(self, record: CommitRecord) -> "JobRun":
        """Return it with what a commit says of an evaluation, if that is news."""
        known = -1 if self.evaluation is None else self.evaluation.step
        if record.evaluation_loss is None or record.step <= known:
            return self
        return replace(self, evaluation=Evaluation(step=record.step, loss=record.evaluation_loss))

    @property
    def base_steps(self) -> int:
        """Steps that the job begins at: before the first commit, nothing of it can be lost."""
        return self.base.step if self.base is not None else 0

    @property
    def waits(self) -> bool:
        """Whether it has no plan, and goes on by itself when there can be one."""
        return self.state in (JobState.PENDING, JobState.WAITING)

    @property
    def has_trained(self) -> bool:
        """Whether engines were ever told to train."""
        return self.placement is not None

    @property
    def trains(self) -> bool:
        """Whether engines compute steps, as far as they were told."""
        transition = self.transition
        if self.placement is None or self.state not in (JobState.RUNNING, JobState.RECOVERING):
            return False
        if transition is None or transition.is_beside:
            return True
        at_commit = transition.mode is QuiesceMode.AT_COMMIT
        return at_commit and transition.phase in (Phase.QUIESCING, Phase.SWITCHING)

    @property
    def in_force(self) -> Placement | None:
        """The placement that engines have, as far as their reports tell."""
        switched = self.transition is not None and self.transition.has_switched
        return self.candidate if switched else self.placement

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Those that may be in force, the older one first."""
        return tuple(p for p in (self.placement, self.candidate) if p is not None)

    @property
    def counted_on(self) -> frozenset[str]:
        """Engines that steps cannot do without, now or behind the commit that is waited for."""
        return frozenset(e for placement in self.placements for e in placement.engine_ids)

    @property
    def prepared_engines(self) -> Mapping[str, Engine]:
        """Engines that take directives."""
        return {key: engine for key, engine in self.engines.items() if engine.prepared}

    @property
    def held_nodes(self) -> frozenset[str]:
        """Nodes that no other job may have."""
        return (
            frozenset(self.nodes)
            | {engine.node_id for engine in self.engines.values()}
            | set(self.stopping.values())
        )

    @property
    def usable_nodes(self) -> tuple[str, ...]:
        """Nodes all of whose accelerators have a prepared engine, in order."""
        prepared: dict[str, int] = {}
        for engine in self.prepared_engines.values():
            prepared[engine.node_id] = prepared.get(engine.node_id, 0) + 1
        return tuple(
            sorted(
                node_id
                for node_id, facts in self.nodes.items()
                if prepared.get(node_id, 0) == facts.num_accelerators
            )
        )

    def next_deadline_seconds(self) -> float | None:
        """Return when a Tick is due, on the monotonic clock."""
        deadlines = [p.deadline_seconds for p in self.pending.values()]
        deadlines += [c.deadline_seconds for c in self.checkpoints.values() if not c.sealer]
        if self.disturbance is not None:
            deadlines.append(self.disturbance.deadline_seconds)
        return min(deadlines, default=None)
