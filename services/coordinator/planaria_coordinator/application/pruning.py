"""Delete in the background what nobody will read again."""

from typing import Final

from planaria_coordinator.application.ports import Database
from planaria_coordinator.domain.job.job_run import JobRun

NUM_KEPT_GENERATIONS: Final = 8
"""Whose directives stay, for the analysis of an incident. A loss takes two
generations: one that finishes the step, and one that gives everybody else a place."""

_MAX_ROWS: Final = 250
"""Deleted at once: a recovery that begins meanwhile waits for no more than these."""


class Pruning:
    """Keeps the directives of each job's last generations, and those that are pending."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pruned: dict[str, int] = {}
        """By job: the oldest generation that was kept."""

    def is_due(self, run: JobRun) -> bool:
        """Return whether a job, when nothing is in a hurry, has more than it needs."""
        return run.transition is None and _oldest_kept(run) > self._pruned.get(run.job_id, 1)

    async def prune(self, run: JobRun) -> None:
        """Delete what a job needs no more."""
        oldest = self._pruned[run.job_id] = _oldest_kept(run)
        num_deleted = _MAX_ROWS
        while num_deleted == _MAX_ROWS:
            async with self._database.unit_of_work() as work:
                num_deleted = await work.directives.prune(
                    run.job_id, before_generation=oldest, limit=_MAX_ROWS
                )
                await work.commit()

    def forget(self, job_id: str) -> None:
        """A job has ended."""
        self._pruned.pop(job_id, None)


def _oldest_kept(run: JobRun) -> int:
    return run.generation - NUM_KEPT_GENERATIONS + 1
