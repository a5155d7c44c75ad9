"""Adds to a recovery what its step lost, once the steps that it is compared with are stored.

All of it is read from the database: a restart of the coordinator loses nothing.
"""

from planaria_coordinator.application.ports import Database, UnitOfWork
from planaria_coordinator.domain.recovery.recovery_figures import (
    MAX_WHOLE_STEPS,
    MIN_WHOLE_STEPS,
    LostTime,
    lost_time,
)
from planaria_coordinator.domain.recovery.recovery_record import Recovery


class LostTimeMeter:
    """Knows which recoveries of a job have yet to be measured."""

    def __init__(self, database: Database, job_id: str) -> None:
        self._database = database
        self._job_id = job_id
        self._open: dict[int, Recovery] = {}
        self._is_loaded = False

    def note(self, recovery: Recovery) -> None:
        """Have a recovery measured that was stored."""
        if recovery.hit_step is not None:
            self._open[recovery.id] = recovery

    async def measure(self, newest_step: int, *, has_ended: bool) -> bool:
        """Store what has become known; whether something has.

        Args:
            newest_step: the newest step that is stored.
            has_ended: whether the job has: no further step follows.
        """
        await self._load()
        due = [
            (each, each.hit_step)
            for each in self._open.values()
            if each.hit_step is not None
            and (has_ended or newest_step >= each.hit_step + MIN_WHOLE_STEPS)
        ]
        if not due:
            return False
        measured = []
        async with self._database.unit_of_work() as work:
            for recovery, step in due:
                measured.append(await self._measure_one(work, recovery, step, has_ended=has_ended))
            if any(lost.seconds is not None for lost in measured):
                await work.commit()
        for (recovery, _), lost in zip(due, measured, strict=True):
            if lost.is_final:
                del self._open[recovery.id]
        return any(lost.seconds is not None for lost in measured)

    async def _load(self) -> None:
        """After a restart, look again at every recovery that has not been measured."""
        if self._is_loaded:
            return
        async with self._database.unit_of_work() as work:
            for recovery in await work.recoveries.unmeasured(self._job_id):
                self._open.setdefault(recovery.id, recovery)
        self._is_loaded = True

    async def _measure_one(
        self, work: UnitOfWork, recovery: Recovery, step: int, *, has_ended: bool
    ) -> LostTime:
        # One more than needed shows that the plan has changed.
        steps = await work.step_metrics.since(self._job_id, step - 1, MAX_WHOLE_STEPS + 2)
        lost = lost_time(step, recovery.generation, steps, has_ended=has_ended)
        if lost.seconds is not None:
            await work.recoveries.save_lost_seconds(self._job_id, recovery.id, lost.seconds)
        return lost
