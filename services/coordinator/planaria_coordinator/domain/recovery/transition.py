"""A change to a new generation, under way: its cause, its phase, the answers so far."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.outcome import Activated, Copied, FenceReport, Staged
from planaria_coordinator.domain.job.time_account import TimeAccount
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery
from planaria_coordinator.domain.recovery.recovery_record import RecoveryPhase


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


PLAN_CHANGES = (
    Cause.NODE_LOST,
    Cause.ENGINE_LOST,
    Cause.NODE_JOINED,
    Cause.NODE_DRAINED,
    Cause.RESUMED,
)
"""Causes of changes from one plan to the next, which are recorded.

A job's start, a pause and the end of training are none.
"""


class Phase(StrEnum):
    """Where a transition is; protocol/job.md has the table."""

    PREPARING = "PREPARING"
    QUIESCING = "QUIESCING"
    ROLLING_FORWARD = "ROLLING_FORWARD"
    PLANNING = "PLANNING"
    COPYING = "COPYING"
    ACTIVATING = "ACTIVATING"
    STAGING = "STAGING"
    SWITCHING = "SWITCHING"
    DIGESTING = "DIGESTING"
    CHECKPOINTING = "CHECKPOINTING"
    EXPORTING = "EXPORTING"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionHistory:
    """What a transition is about; a later one that replaces it takes it over."""

    cause: Cause
    start_time: datetime
    """When the fault happened or the change was asked for, as near as it is known."""
    first_open_time: datetime
    """When the first of its generations was opened: the fault was noticed."""
    nodes_lost: tuple[str, ...] = ()
    engines_lost: tuple[str, ...] = ()
    nodes_joined: tuple[str, ...] = ()
    sizes_before: tuple[int, ...] = ()
    num_attempts: int = 0
    """How often it was started again without a further loss."""
    redone_by: tuple[str, ...] = ()
    """Engines whose work on the step in flight is counted, and that have begun no other since."""
    redone_microbatches: int = 0
    redone_seconds: float = 0.0
    """Seconds of computation thrown away, over all engines."""
    copied_bytes: int = 0
    stop_times: dict[str, datetime] = field(default_factory=dict)
    """By engine: since when it is stopped, where healthy pipelines have finished the step."""
    resume_time: datetime | None = None
    """When all survivors took part in the step again, for healthy pipelines to finish it; None:
    there were none."""
    fence_time: datetime | None = None
    """When the last survivor was fenced; once engines have activated, of the fence after that."""
    has_activated: bool = False
    """Whether some engine has activated since that fence."""
    hit_step: int | None = None
    """The step in flight at the first fence; None where its length tells of more than this."""
    idle_seconds: float | None = None
    """How long nobody computed, in earlier generations of it."""
    phases: tuple[RecoveryPhase, ...] = ()
    """Of the generation that finished the step."""
    staging_failed: bool = False
    """Some engine could not stage its assignment: all are parked for the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change to a new generation, under way."""

    generation: int
    phase: Phase
    history: TransitionHistory
    open_time: datetime
    horizon_seconds: float
    mode: QuiesceMode | None = None
    plans_online: bool = False
    """The planner is asked while engines train; they hear of the change after its answer."""
    time_account_before: TimeAccount | None = None
    """The job's time before the fault that healthy pipelines compute through."""
    awaited_nodes: tuple[str, ...] = ()
    """Nodes whose engines must be prepared before directives are sent."""
    participants: tuple[str, ...] = ()
    """Engines that were sent a Quiesce."""
    stopped: tuple[str, ...] = ()
    """Those of them that had an assignment, and so had to stop computing."""
    reports: dict[str, FenceReport] = field(default_factory=dict)
    fault_tolerance: int | None = None
    """What is asked of the planner when what the job wants has been refused."""
    failure: str = ""
    """Why an engine could not take its assignment."""
    is_at_fault: bool = False
    """Whether one could not for any other reason than that a peer was not there."""
    target_steps: int = 0
    """T*: the version to bring every engine to."""
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
    def begins_at_commit(self) -> bool:
        """Whether no fence came before it: engines compute until a commit, and stop only there.

        So do a join, a drain and a pause; a resumption, whose engines are parked, does not.
        """
        return self.mode is QuiesceMode.AT_COMMIT and self.history.resume_time is None

    @property
    def regrows(self) -> bool:
        """Whether it builds lost pipelines again, after healthy ones went on to finish the step."""
        return self.mode is QuiesceMode.AT_COMMIT and self.history.resume_time is not None

    @property
    def finishes_step(self) -> bool:
        """Whether healthy pipelines finish the step in flight; the others are assigned after it."""
        return self.target is not None and bool(self.target.step_microbatches)

    @property
    def copied_bytes(self) -> int:
        """Of layers that have arrived."""
        copied = sum(outcome.num_bytes for outcome in self.copied.values())
        return copied + sum(outcome.num_bytes for outcome in self.staged.values())

    @property
    def is_online(self) -> bool:
        """Whether training continues, whatever becomes of this transition."""
        return self.plans_online or self.phase in (Phase.PREPARING, Phase.STAGING)
