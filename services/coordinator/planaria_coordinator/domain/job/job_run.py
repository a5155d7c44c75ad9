"""The state of a job's state machine: everything that `job/decide.py` knows of a job.

It is stored as one document with every decision that leaves the coordinator. What arrives within
a phase (reports, acknowledgements) may be lost with the coordinator: after its crash it asks for it
again in a new generation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from planaria_coordinator.domain.checkpoint.checkpoint import Checkpoint
from planaria_coordinator.domain.engines.directive import CommitRecord, InitialState, QuiesceMode
from planaria_coordinator.domain.engines.engine import Engine, Pending
from planaria_coordinator.domain.engines.links import FailedLink
from planaria_coordinator.domain.job.job import Evaluation, JobError, JobState
from planaria_coordinator.domain.job.requirements import NodeFacts, Requirements
from planaria_coordinator.domain.job.time_account import TimeAccount
from planaria_coordinator.domain.placement.absent_holders import AbsentHolder, AwaitedState
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.recovery.recovery_record import Recovery
from planaria_coordinator.domain.recovery.transition import (
    Cause,
    Phase,
    Transition,
    TransitionHistory,
)


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
    stalled_seconds: float = 1.0
    """How long other engines may take to say what stalls for them."""
    cordon_seconds: float = 30.0
    """How long a job does without a node whose links failed, the first time."""
    copy_bytes_per_second: float = 20e6
    """Slower copies, digests and exports count as hanging."""
    num_attempts: int = 3
    """How often a thing is tried before it is given up: starting an engine, a transition."""
    failure_window_seconds: float = 3600.0
    """Engines of a node that failed longer ago no longer speak against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Communicators that broke, and nobody is known to be lost."""

    engine_id: str
    message: str
    fault_time: datetime
    deadline_seconds: float
    """When to act on it, on the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A node that the job does without for a while: other jobs may use it."""

    reason: str
    end_seconds: float
    """When it may join again, on the monotonic clock."""
    pause_seconds: float
    """How long that is; the next time it is twice as long."""
    since_time: datetime
    peers: tuple[str, ...] = ()
    """Nodes at the other ends of the links: it may have been their fault."""
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """What keeps a job from going on though it has nodes and state: it is tried again."""

    reason: str
    num_tries: int = 1
    """Since the last committed step: with each the pause before the next doubles."""
    retry_seconds: float | None = None
    """When the pause ends, on the monotonic clock; None: it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A job's coordination."""

    job_id: str
    requirements: Requirements
    state: JobState
    time_account: TimeAccount
    nodes_per_replica: int
    """n0: the fewest nodes that hold the model."""
    generation: int = 0
    """The newest ever written."""
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    """Nodes that the job holds."""
    draining: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    """Nodes that cannot serve this job, and why."""
    start_failure: JobError | None = None
    """Why it could not start on the last node that it had; others may do better."""
    cordoned: dict[str, Cordon] = field(default_factory=dict)
    """Nodes that the job does without, or did lately, because links to them failed."""
    failed_links: tuple[FailedLink, ...] = ()
    """Between engines that live, as far as is known."""
    failure_times: dict[str, tuple[datetime, ...]] = field(default_factory=dict)
    """By node: when engines failed on their own."""
    engines: dict[str, Engine] = field(default_factory=dict)
    absent: dict[str, AbsentHolder] = field(default_factory=dict)
    """Lost engines whose nodes may come back with what they held; until another commit."""
    awaited_state: AwaitedState | None = None
    """Layers that only some of those hold: the job waits for them."""
    restored_generation: int = 0
    """The first generation since the job went back to a checkpoint; 0: it never did."""
    stopping: dict[str, str] = field(default_factory=dict)
    """Engines ordered to stop, and their nodes."""
    pending: dict[str, Pending] = field(default_factory=dict)
    placement: Placement | None = None
    """What engines are to activate at once, or have all switched to."""
    candidate: Placement | None = None
    """What they are to switch to at a commit: whether they have, only they know.

    placement/placement.py tells the placements of a job apart.
    """
    left_idle: tuple[str, ...] = ()
    """Engines that were ready when the planner was asked, and it kept the plan as it is.

    Until there is another plan, or a new engine that could change it, they are not offered again.
    """
    transition: Transition | None = None
    interrupted: TransitionHistory | None = None
    """Of a recovery that waits for nodes."""
    waiting_reason: str = ""
    """Why it waits, or did before it began to start; empty once it runs."""
    pause_wanted: bool = False
    committed_steps: int = 0
    last_commit_time: datetime | None = None
    last_step_seconds: float = 0.0
    data_digest: str = ""
    model_digest: str = ""
    fingerprint: dict[str, str] = field(default_factory=dict)
    reference_node_id: str = ""
    """The node that the digests and `fingerprint` were taken from."""
    initial_state: InitialState | None = None
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
    num_faults: int = 0
    last_fault: str = ""
    """The newest of them, as it was reported."""
    disturbance: Disturbance | None = None
    num_disturbances: int = 0
    """Communicators that broke with everyone alive, since the last committed step."""
    setback: Setback | None = None
    """Since the last committed step."""
    num_recoveries: int = 0
    suspected: dict[str, Recovery] = field(default_factory=dict)
    """By node that lost an engine and has had none since: the recovery that reported it.

    All of the node may be gone, and that be known only now.
    """
    evaluation: Evaluation | None = None
    """The newest that is known."""
    num_skipped_steps: int = 0
    newest_skipped_steps: tuple[int, ...] = ()
    """Those that are known already when they are reported again; at most MAX_KNOWN_SKIPS."""
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
    def initial_steps(self) -> int:
        """Steps that the job begins at: before the first commit, nothing of it can be lost."""
        return self.initial_state.step if self.initial_state is not None else 0

    @property
    def waits(self) -> bool:
        """Whether it has no plan, and goes on by itself when there can be one."""
        return self.state in (JobState.PENDING, JobState.WAITING)

    @property
    def is_parked(self) -> bool:
        """Whether it waits for nodes or for state, and nothing is under way."""
        return self.state is JobState.WAITING and self.transition is None

    @property
    def rests(self) -> bool:
        """Whether it pauses before it tries again what went wrong."""
        return self.setback is not None and self.setback.retry_seconds is not None

    @property
    def left_out(self) -> dict[str, str]:
        """Nodes that the job does without for a while, and why."""
        return {node_id: c.reason for node_id, c in self.cordoned.items() if not c.is_over}

    @property
    def unreported_recovery(self) -> TransitionHistory | None:
        """What a job that waits for nodes has yet to tell of; also while engines start on some."""
        if self.transition is None:
            return self.interrupted
        history = self.transition.history
        if self.state is not JobState.WAITING or history.cause is Cause.NODE_JOINED:
            return None
        return replace(history, nodes_joined=())

    @property
    def has_trained(self) -> bool:
        """Whether engines were ever activated."""
        return self.placement is not None

    @property
    def was_restored(self) -> bool:
        """Whether it has gone back to a checkpoint, and has not trained since."""
        return self.restored_generation > 0 and not self.has_trained

    @property
    def trains(self) -> bool:
        """Whether engines compute steps, by their directives."""
        transition = self.transition
        if self.placement is None or self.state not in (JobState.RUNNING, JobState.RECOVERING):
            return False
        if transition is None or transition.is_online:
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
    def required_engines(self) -> frozenset[str]:
        """Engines that steps cannot do without, now or after the commit that is waited for."""
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
            | {holder.node.node_id for holder in self.absent.values()}
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
        deadlines += [c.end_seconds for c in self.cordoned.values() if not c.is_over]
        if self.disturbance is not None:
            deadlines.append(self.disturbance.deadline_seconds)
        if self.setback is not None and self.setback.retry_seconds is not None:
            deadlines.append(self.setback.retry_seconds)
        awaited = self.awaited_state
        if awaited is not None and awaited.deadline_seconds is not None and self.is_parked:
            deadlines.append(awaited.deadline_seconds)
        return min(deadlines, default=None)
