"""What the application needs from outside, as protocols.

Repositories live inside a unit of work: nothing is visible to others before `commit`, and leaving
the block without it rolls back. Only the request boundary (a method of a service) and the actor of
a job commit. No call to the planner, a scheduler or a session is made while one is open.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.domain.engines.directive import Directive
from planaria_coordinator.domain.engines.node import Node
from planaria_coordinator.domain.job.event import Event, EventDraft
from planaria_coordinator.domain.job.job import Job, LogLine, StepMetrics
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery
from planaria_coordinator.domain.recovery.recovery_record import Recovery

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some items of a list, and where to go on."""

    items: tuple[T, ...]
    next_page_token: str = ""
    """Empty at the end. Opaque; the repository refuses a token it did not make with
    INVALID_ARGUMENT, field page_token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRecord:
    """A generation of a job: written when it is opened, again when its plan is known."""

    job_id: str
    generation: int
    cause: str
    open_time: datetime
    plan: Plan | None = None
    """Present once the plan is chosen and sent to its engines."""
    reason: str = ""
    """Why this plan, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A change that was made under a request id."""

    request_id: str
    method: str
    fingerprint: str
    """SHA-256 of the request's contents; another content under the same id is an error."""
    resource_id: str
    create_time: datetime


class JobRepository(Protocol):
    """Jobs."""

    async def add(self, job: Job) -> None: ...

    async def get(self, job_id: str) -> Job | None: ...

    async def save(self, job: Job) -> None:
        """Replace a job that exists."""
        ...

    async def page(self, page: PageRequest) -> Page[Job]:
        """List jobs, the newest first."""
        ...

    async def unfinished(self) -> Sequence[Job]:
        """List every job whose state is not terminal, the oldest first."""
        ...


class RunRepository(Protocol):
    """The state of each job's state machine, as one document; of jobs that have ended, too."""

    async def get(self, job_id: str) -> JobRun | None: ...

    async def save(self, run: JobRun) -> None:
        """Insert or replace."""
        ...


class NodeRepository(Protocol):
    """Nodes; `engines` need not be stored."""

    async def save(self, node: Node) -> None:
        """Insert or replace."""
        ...

    async def remove(self, node_id: str) -> None: ...

    async def all(self) -> Sequence[Node]:
        """List every node by id."""
        ...

    async def save_heartbeats(self, times: Mapping[str, datetime]) -> None:
        """Set `heartbeat_time` of many nodes in one statement."""
        ...


class GenerationRepository(Protocol):
    """Generations with their plans."""

    async def save(self, record: GenerationRecord) -> None:
        """Insert or replace, by (job, generation)."""
        ...

    async def newest_planned(self, job_id: str) -> GenerationRecord | None:
        """Return the newest generation that has a plan."""
        ...


class DirectiveRepository(Protocol):
    """Directives that were sent; written before they are sent."""

    async def add(self, directives: Sequence[Directive]) -> None: ...

    async def resolve(self, directive_id: str) -> None:
        """Mark one as answered; does nothing when it is unknown or resolved already."""
        ...

    async def drop(self, directive_ids: Iterable[str]) -> None:
        """Mark some as superseded: they are not sent again."""
        ...

    async def pending(self) -> Sequence[Directive]:
        """List those neither resolved nor dropped, in the order they were added."""
        ...

    async def prune(self, job_id: str, *, before_generation: int, limit: int) -> int:
        """Delete those of older generations that are not pending, at most `limit`: how many?"""
        ...


class EventRepository(Protocol):
    """Events, append-only."""

    async def append(self, drafts: Sequence[EventDraft]) -> None:
        """Give each the next sequence number, without gaps in the order of commits."""
        ...

    async def after(self, sequence: int, *, job_id: str, limit: int) -> Sequence[Event]:
        """List events behind a sequence number, the oldest first; of one job unless it is ""."""
        ...

    async def newest_sequence(self) -> int:
        """Return the newest event's sequence number, 0 before the first."""
        ...


class RecoveryRepository(Protocol):
    """Recoveries of jobs."""

    async def save(self, recovery: Recovery) -> None:
        """Insert, or replace the one of this id; its `lost_seconds` stay as they are."""
        ...

    async def save_lost_seconds(self, job_id: str, recovery_id: int, seconds: float) -> None:
        """Add what is known only some steps after the recovery."""
        ...

    async def unmeasured(self, job_id: str) -> Sequence[Recovery]:
        """List those that have hit a step and have no `lost_seconds`, the oldest first."""
        ...

    async def page(self, job_id: str, page: PageRequest) -> Page[Recovery]:
        """List by id, the oldest first."""
        ...


class StepMetricsRepository(Protocol):
    """Committed steps of jobs."""

    async def add(self, metrics: Sequence[StepMetrics]) -> None:
        """Insert; a (job, step) that exists already is left as it is."""
        ...

    async def forget(self, job_id: str, first_step: int) -> None:
        """Remove the steps from one on: the job has gone back to a checkpoint."""
        ...

    async def page(self, job_id: str, page: PageRequest) -> Page[StepMetrics]:
        """List by step, the oldest first."""
        ...

    async def since(self, job_id: str, step: int, limit: int) -> Sequence[StepMetrics]:
        """List steps from one on, the oldest first."""
        ...

    async def newest(self, job_id: str, limit: int) -> Sequence[StepMetrics]:
        """List the newest steps, the oldest of them first."""
        ...


class LogLineRepository(Protocol):
    """Lines that engines wrote."""

    async def append(self, lines: Sequence[LogLine]) -> None:
        """Add lines of any number of jobs; each gets its job's next sequence number."""
        ...

    async def page(self, job_id: str, page: PageRequest) -> Page[LogLine]:
        """List by sequence, the oldest first."""
        ...


class RequestRepository(Protocol):
    """Changes by request id."""

    async def get(self, request_id: str) -> RequestRecord | None: ...

    async def add(self, record: RequestRecord) -> None: ...

    async def forget_before(self, time: datetime) -> None:
        """Delete those that were made before a moment."""
        ...


class UnitOfWork(Protocol):
    """One transaction."""

    jobs: JobRepository
    runs: RunRepository
    nodes: NodeRepository
    generations: GenerationRepository
    directives: DirectiveRepository
    events: EventRepository
    recoveries: RecoveryRepository
    step_metrics: StepMetricsRepository
    log_lines: LogLineRepository
    requests: RequestRepository

    async def commit(self) -> None:
        """Make everything visible and durable, or raise and leave nothing."""
        ...


class Database(Protocol):
    """Where units of work come from."""

    def unit_of_work(self, *, urgent: bool = False) -> AbstractAsyncContextManager[UnitOfWork]:
        """Open a transaction; leaving the block without `commit` rolls it back.

        Args:
            urgent: engines wait for it: where one transaction comes after another, it is next.
        """
        ...

    @property
    def epoch(self) -> int:
        """Grows with every coordinator that opens the database: only the newest may write."""
        ...

    async def check_leadership(self) -> None:
        """Do nothing, or raise NOT_LEADER when another coordinator has opened the database since.

        Every unit of work that writes does so first. This is for what is sent without a write.
        """
        ...

    async def ping(self) -> None:
        """Do nothing, or raise UnavailableError when the database does not answer."""
        ...


class Planner(Protocol):
    """The planner's service. Each call has a deadline of its own and is tried again elsewhere
    when a server does not answer; UNAVAILABLE when none does in time.
    """

    async def plan(self, query: PlanQuery) -> PlanAnswer:
        """Instantiate when the query has no current plan, Reconfigure otherwise.

        Raises:
            PlanariaError: MODEL_DOES_NOT_FIT, NOT_ENOUGH_NODES, FAULT_TOLERANCE_IMPOSSIBLE (with
                `possible` in its metadata), NOT_ENOUGH_MICROBATCHES, UNAVAILABLE, ….
        """
        ...

    def contingency_plans(self, query: PlanQuery) -> AsyncIterator[tuple[str, PlanAnswer]]:
        """Yield, by node of the query's current plan, what follows its loss, where anything does.

        Raises:
            PlanariaError: UNAVAILABLE, or whatever is wrong with the question itself.
        """
        ...

    async def min_nodes(self, query: PlanQuery) -> int:
        """Return the fewest nodes that hold the model (n0), however many the query names.

        Raises:
            PlanariaError: MODEL_DOES_NOT_FIT, INVALID_PROFILE or UNAVAILABLE.
        """
        ...

    async def ping(self) -> None:
        """Do nothing, or raise UnavailableError when no planner answers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """What a policy is shown with every question."""

    job: Job
    nodes: tuple[Node, ...]
    """Every node of the cluster."""
    jobs: tuple[Job, ...]
    """Every job that holds nodes."""
    relative_speeds: Mapping[str, float]
    """By node with engines of the job: how fast they computed its layers; 1 for the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesQuestion:
    """Which nodes does a job get?"""

    scheduler: str
    """The name in the job file; "default" for the built-in policy."""
    candidates: tuple[Node, ...]
    """Nodes that may be chosen, by id."""
    min_nodes: int
    max_nodes: int
    view: PolicyView


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesDecision:
    """The nodes a job gets; none: the job waits."""

    node_ids: tuple[str, ...]
    reason: str
    overruled: str = ""
    """Why a custom scheduler's answer was not taken; the application makes an event of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """Which plan follows a change?"""

    scheduler: str
    query: PlanQuery
    """What the planner was asked."""
    fault_tolerance: int
    """How many losses the plan must survive at least."""
    proposal: Plan
    """What the planner would do."""
    view: PolicyView


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecision:
    """The plan that follows: the proposal, or another one, which nobody has checked yet."""

    plan: Plan
    reason: str
    overruled: str = ""


class SchedulingPolicy(Protocol):
    """Decides what a user's scheduler may decide. Never raises: when a custom scheduler is late,
    gone or wrong, the answer is that of `scheduling.policy.BuiltInPolicy`
    with `overruled` set.
    """

    def knows(self, scheduler: str) -> bool:
        """Whether a scheduler of this name is or ever was connected, or is "default"."""
        ...

    async def choose_nodes(self, question: NodesQuestion) -> NodesDecision: ...

    async def choose_plan(self, question: PlanQuestion) -> PlanDecision: ...
