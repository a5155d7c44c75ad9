"""The state of a job's state machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """Everything `domain.transition.decide` knows of a job; stored as one document."""

    job_id: str
