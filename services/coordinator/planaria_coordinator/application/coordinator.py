"""The coordinator as one object: what the composition root builds and the entry points use."""

import asyncio
from collections.abc import Callable, Sequence

from planaria_common.clock import Clock
from planaria_common.errors import PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.application.agents.node_updates import send_node_updates
from planaria_coordinator.application.agents.sessions import Sessions
from planaria_coordinator.application.cluster import Cluster
from planaria_coordinator.application.events import Events
from planaria_coordinator.application.jobs.jobs import Jobs
from planaria_coordinator.application.jobs.projection import NUM_STEPS_FOR_RATE
from planaria_coordinator.application.jobs.restored_run import restored_run
from planaria_coordinator.application.options import Options
from planaria_coordinator.application.ports import (
    Database,
    Planner,
    SchedulingPolicy,
    UnitOfWork,
)
from planaria_coordinator.application.scheduling.scheduler import Scheduler
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.application.supervision import Supervisor
from planaria_coordinator.domain.engines.directive import Directive
from planaria_coordinator.domain.job.job import Job
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.signals import Restarted

log = get_logger("coordinator")


class Coordinator:
    """All services over one database.

    Args:
        database: where everything is kept.
        planner: where plans come from.
        policy: decides which nodes and which plan a job gets.
        clock: the time.
        options: deadlines.
        new_id: makes ids that are unique and lower-case, such as new_id("job") -> "job-4f2a91c0".
    """

    def __init__(
        self,
        *,
        database: Database,
        planner: Planner,
        policy: SchedulingPolicy,
        clock: Clock,
        options: Options,
        new_id: Callable[[str], str],
    ) -> None:
        self._state = SharedState(
            database=database,
            planner=planner,
            policy=policy,
            clock=clock,
            options=options,
            new_id=new_id,
        )
        self._scheduler = Scheduler(self._state)
        self._supervisor = Supervisor(self._state)
        self._tasks: list[asyncio.Task[None]] = []
        self.jobs = Jobs(self._state)
        self.cluster = Cluster(self._state)
        self.events = Events(self._state)
        self.sessions = Sessions(self._state)

    async def start(self, *, with_clock: bool = True) -> None:
        """Read what the database knows, and begin to act. Call before the servers listen.

        Args:
            with_clock: look at the clock by itself; otherwise somebody calls `tick` and `flush`.
        """
        await self._recover()
        self._tasks.append(asyncio.create_task(self._scheduler.serve(), name="scheduler"))
        if with_clock:
            for loop in (self._supervisor.serve_ticks, self._supervisor.serve_flushes):
                self._tasks.append(asyncio.create_task(loop(), name="supervisor"))
        self._state.scheduling_wanted.set()

    async def _recover(self) -> None:
        """Restore every job that has not ended, or whose engines have yet to stop.

        At any point its run says how to go on.
        """
        state = self._state
        async with state.database.unit_of_work() as work:
            state.nodes.load(await work.nodes.all())
            pending = await work.directives.pending()
            jobs = await _jobs_to_restore(work, pending)
            loaded = [
                (
                    job,
                    await work.runs.get(job.id),
                    await work.step_metrics.newest(job.id, NUM_STEPS_FOR_RATE),
                )
                for job in jobs
            ]
        await self._drop_unawaited(pending, [run for _, run, _ in loaded])
        for job, run, newest in loaded:
            if run is None:
                log.error("job_without_run", job_id=job.id)
                continue
            if run.state.is_terminal and not run.stopping:
                continue
            actor = state.add_actor(job, restored_run(job, run, newest), newest)
            for directive in pending:
                if directive.id in run.pending:
                    state.dispatcher.send(directive)
            actor.post(Restarted())
            send_node_updates(state, actor)
            log.info("job_restored", job_id=job.id, state=run.state, generation=run.generation)

    async def _drop_unawaited(
        self, pending: Sequence[Directive], runs: Sequence[JobRun | None]
    ) -> None:
        """A job stores what follows from a result; the result may be lost with a coordinator."""
        awaited = {directive_id for run in runs if run is not None for directive_id in run.pending}
        settled = [each.id for each in pending if each.id not in awaited]
        if not settled:
            return
        try:
            async with self._state.database.unit_of_work() as work:
                await work.directives.drop(settled)
                await work.commit()
        except PlanariaError as error:  # a full disk: the next start tries again
            log.warning("directives_not_settled", cause=str(error))

    async def stop(self) -> None:
        """Stop acting; engines go on. What is in the database suffices to start again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        try:
            await self._supervisor.flush()
        except Exception as error:
            log.warning("flush_failed", cause=str(error))
        await self._state.stop_actors()

    async def check_ready(self) -> None:
        """Do nothing, or raise UnavailableError naming the part that does not answer."""
        await self._state.database.ping()
        await self._state.planner.ping()

    async def tick(self) -> None:
        """Act on what the time is; done by itself unless started without a clock."""
        await self._supervisor.tick()

    async def flush(self) -> None:
        """Write what has gathered; done by itself unless started without a clock."""
        await self._supervisor.flush()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being decided, planned or scheduled right now."""
        waiting = self._state.scheduling_wanted.is_set()
        actors = all(actor.is_idle for actor in self._state.actors.values())
        quiet = not self._state.is_busy_in_background and not waiting
        return actors and self._scheduler.is_idle and quiet


async def _jobs_to_restore(work: UnitOfWork, pending: Sequence[Directive]) -> Sequence[Job]:
    """Return the jobs that have not ended, and those of which engines may have yet to stop.

    What an engine does at last, such as to seal a checkpoint, is heard until it has stopped.
    """
    unfinished = await work.jobs.unfinished()
    others = {directive.job_id for directive in pending} - {job.id for job in unfinished}
    ended = [await work.jobs.get(job_id) for job_id in sorted(others)]
    return [*unfinished, *(job for job in ended if job is not None)]
