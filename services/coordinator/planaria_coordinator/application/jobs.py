"""What users do with jobs. REST and gRPC are two faces of this class."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from planaria_coordinator.application.ports import GenerationRecord, Page
from planaria_coordinator.domain.job import Job, LogLine, StepMetrics
from planaria_coordinator.domain.plan import Plan
from planaria_coordinator.domain.recovery import Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What came of submitting a job."""

    job: Job
    """With an empty id when it was a dry run."""
    plan: Plan | None
    """On the nodes that are ready now; None while there are too few."""
    reason: str
    """Why this plan, or why none yet, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job at one moment."""

    job: Job
    sequence: int
    """Sequence number of the newest event that it contains."""


class Jobs:
    """Submits, reads and changes jobs."""

    async def create(
        self, spec: Mapping[str, Any], *, request_id: str = "", dry_run: bool = False
    ) -> Submission:
        """Submit a job file; the same request id returns the same job.

        Raises:
            PlanariaError: INVALID_JOB (metadata `field`), MODEL_DOES_NOT_FIT,
                FAULT_TOLERANCE_IMPOSSIBLE, NOT_ENOUGH_MICROBATCHES, SCHEDULER_NOT_FOUND,
                REQUEST_ID_REUSED, UNAVAILABLE.
        """
        raise NotImplementedError

    async def get(self, job_id: str) -> Job:
        """Read a job, its times up to now. Raises JOB_NOT_FOUND."""
        raise NotImplementedError

    async def list(self, *, page_size: int = 0, page_token: str = "") -> Page[Job]:
        """List jobs, the newest first; 100 unless told otherwise, at most 1,000."""
        raise NotImplementedError

    async def cancel(self, job_id: str, *, request_id: str = "") -> Job:
        """End a job. Idempotent. Raises JOB_NOT_FOUND or WRONG_STATE."""
        raise NotImplementedError

    async def pause(self, job_id: str, *, request_id: str = "") -> Job:
        """Let a job stand still after a commit. Idempotent. Raises JOB_NOT_FOUND, WRONG_STATE."""
        raise NotImplementedError

    async def resume(self, job_id: str, *, request_id: str = "") -> Job:
        """Let a paused job go on. Idempotent. Raises JOB_NOT_FOUND or WRONG_STATE."""
        raise NotImplementedError

    async def plan(self, job_id: str) -> GenerationRecord | None:
        """Read the newest plan; None before the first. Raises JOB_NOT_FOUND."""
        raise NotImplementedError

    async def metrics(
        self, job_id: str, *, page_size: int = 0, page_token: str = ""
    ) -> Page[StepMetrics]:
        """List committed steps, the oldest first; 1,000 unless told otherwise."""
        raise NotImplementedError

    async def recoveries(
        self, job_id: str, *, page_size: int = 0, page_token: str = ""
    ) -> Page[Recovery]:
        """List recoveries, the oldest first; 100 unless told otherwise."""
        raise NotImplementedError

    async def logs(self, job_id: str, *, page_size: int = 0, page_token: str = "") -> Page[LogLine]:
        """List lines that the job's engines wrote, the oldest first; 1,000 by default."""
        raise NotImplementedError

    def watch(self, job_id: str) -> AsyncIterator[JobView]:
        """Yield the job as it is now, then each time it changes, until it has ended.

        Raises:
            PlanariaError: JOB_NOT_FOUND, from the first step of the iteration.
        """
        raise NotImplementedError
