"""What a job's state machine wants done. Persisting comes first, telling others second."""

from dataclasses import dataclass
from datetime import datetime

from planaria_coordinator.domain.engines.directive import Directive
from planaria_coordinator.domain.job.event import EventDraft
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.placement.planner_query import PlanQuery
from planaria_coordinator.domain.recovery.recovery_record import Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveGeneration:
    """Write a generation: when it is opened, and again with its plan."""

    generation: int
    cause: str
    open_time: datetime
    plan: Plan | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Write a directive, then send it to its node."""

    directive: Directive


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Forget directives that a newer generation has superseded, or whose node is gone."""

    directive_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPlanner:
    """Ask for a plan; the answer comes as a signal."""

    query: PlanQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Write an event."""

    event: EventDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRecovery:
    """Write a recovery that is finished, or more of what it was about."""

    recovery: Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSteps:
    """Forget the steps from one on: they are computed again."""

    first_step: int


Action = SaveGeneration | Send | Drop | AskPlanner | Emit | RecordRecovery | ForgetSteps
