"""Totals over everything that is stored, for monitoring."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from planaria_coordinator.domain.job.job import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTotals:
    """What the recoveries of one cause came to; an unknown figure adds nothing."""

    count: int
    detect_seconds: float
    fence_seconds: float
    resume_seconds: float
    regrow_seconds: float
    idle_seconds: float
    lost_seconds: float
    copied_bytes: int
    redone_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals over everything that is stored; none of them but those of jobs ever shrinks."""

    jobs: Mapping[JobState, int]
    """Number of jobs by state; states without a job are absent."""
    recoveries: Mapping[str, RecoveryTotals]
    """By cause."""
    num_events: int


class Statistics(Protocol):
    """Where the totals come from."""

    async def totals(self) -> Totals:
        """Count. Raises UnavailableError when the database does not answer."""
        ...
