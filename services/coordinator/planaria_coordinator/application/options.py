"""The times the coordinator goes by; filled in from its settings."""

from dataclasses import dataclass

from planaria_coordinator.domain.job.job_run import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Deadlines in seconds; ARCHITECTURE.md's defaults."""

    heartbeat_interval_seconds: float = 1.0
    node_deadline_seconds: float = 3.0
    agent_lease_seconds: float = 10.0
    directive_deadline_seconds: float = 5.0
    prepare_deadline_seconds: float = 120.0
    progress_deadline_seconds: float = 5.0
    """The least time without progress before an engine counts as hung."""

    store_retry_seconds: float = 0.2
    """How long to wait before a decision that could not be stored is made again."""

    planner_retry_seconds: float = 1.0
    """How long to wait before planners that did not answer are asked again."""

    @property
    def limits(self) -> Limits:
        """What the state machine of a job is given."""
        return Limits(
            directive_seconds=self.directive_deadline_seconds,
            prepare_seconds=self.prepare_deadline_seconds,
        )
