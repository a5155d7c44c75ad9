"""What all parts of the application share: the database, the actors, the nodes."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar

from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.application.agents.dispatcher import Dispatcher
from planaria_coordinator.application.agents.node_registry import NodeRegistry
from planaria_coordinator.application.changes import Changes
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.jobs.projection import nodes_silent
from planaria_coordinator.application.options import Options
from planaria_coordinator.application.ports import (
    Database,
    Planner,
    SchedulingPolicy,
)
from planaria_coordinator.application.pruning import Pruning
from planaria_coordinator.application.requests import Requests
from planaria_coordinator.domain.engines.node import Node
from planaria_coordinator.domain.engines.outcome import DirectiveResult
from planaria_coordinator.domain.job.event import EventDraft
from planaria_coordinator.domain.job.job import Condition, Job, LogLine, StepMetrics
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.signals import Signal

log = get_logger("coordinator")

T = TypeVar("T")


class SharedState:
    """One per coordinator; its members do the work, this only holds them together."""

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
        self.database = database
        self.planner = planner
        self.policy = policy
        self.clock = clock
        self.options = options
        self.new_id = new_id
        self.coordinator_id = new_id("coordinator")
        self.dispatcher = Dispatcher()
        self.requests = Requests(database, clock)
        self.nodes = NodeRegistry(clock)
        self.actors: dict[str, JobActor] = {}
        self.event_changes = Changes()
        self.node_lock = asyncio.Lock()
        """Held while a node's state changes in memory and in the database."""
        self.scheduling_wanted = asyncio.Event()
        self.schedule_again_seconds: float | None = None
        """When to look at all jobs again after a round that failed, on the monotonic clock."""
        self.log_lines: list[LogLine] = []
        """Not yet written."""
        self.results: list[DirectiveResult] = []
        """Not yet written."""
        self._pruning = Pruning(database)
        self._background_tasks: set[asyncio.Task[Any]] = set()

    # -- what actors see ---------------------------------------------------------------------------

    def all_nodes(self) -> tuple[Node, ...]:
        return self.nodes.views()

    def jobs_with_nodes(self) -> tuple[Job, ...]:
        return tuple(actor.view() for actor in self.actors.values() if actor.run.held_nodes)

    def conditions(self, node_ids: Collection[str]) -> tuple[Condition, ...]:
        """Return what is to be known of the nodes of a job."""
        silent = {
            node_id: time
            for node_id, entry in zip(node_ids, map(self.nodes.get, node_ids), strict=True)
            if entry is not None and (time := self.nodes.silent_since_time(entry)) is not None
        }
        return (nodes_silent(silent),) if silent else ()

    def decided(self, actor: JobActor) -> None:
        """Nodes may have become free; a job that has ended and holds none needs no actor."""
        run = actor.run
        if run.state.is_terminal and not run.held_nodes and actor.job_id in self.actors:
            del self.actors[actor.job_id]
            self.run_in_background(self._retire(actor))
        elif self._pruning.is_due(run):
            self.run_in_background(self._pruning.prune(run))
        self.scheduling_wanted.set()

    async def _retire(self, actor: JobActor) -> None:
        try:
            await actor.flush()
        finally:
            await actor.stop()
        actor.changes.notify()
        await self._pruning.prune(actor.run)
        self._pruning.forget(actor.job_id)

    async def carry_out(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change to its end, though who asked for it may go away in the middle.

        What is stored by then must be known here, too.
        """
        task = asyncio.create_task(change)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._background_task_done)  # nobody else learns how it ends
            raise

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something that nobody waits for."""
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_task_done)
        return task

    def _background_task_done(self, task: asyncio.Task[Any]) -> None:
        self._background_tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("background_work_failed", cause=str(task.exception()))

    @property
    def is_busy_in_background(self) -> bool:
        """Whether something that nobody waits for is under way."""
        return bool(self._background_tasks)

    # -- actors ------------------------------------------------------------------------------------

    def add_actor(self, job: Job, run: JobRun, newest: Sequence[StepMetrics] = ()) -> JobActor:
        """Begin to run a job."""
        actor = JobActor(job=job, run=run, dependencies=self, newest=newest)
        self.actors[job.id] = actor
        actor.start()
        return actor

    def post(self, job_id: str, signal: Signal) -> None:
        """Signal a job; one that has ended needs no signal."""
        actor = self.actors.get(job_id)
        if actor is not None:
            actor.post(signal)

    def note_result(self, result: DirectiveResult) -> None:
        """Keep a result until the next flush: what follows from it is stored by the job itself."""
        self.results.append(result)

    def holders(self, node_id: str) -> list[JobActor]:
        """Return the jobs that hold a node."""
        return [actor for actor in self.actors.values() if actor.holds(node_id)]

    @property
    def held_nodes(self) -> frozenset[str]:
        """All nodes that some job holds."""
        return frozenset().union(*(actor.run.held_nodes for actor in self.actors.values()))

    async def stop_actors(self) -> None:
        for actor in tuple(self.actors.values()):
            await actor.stop()
        if self._background_tasks:
            await asyncio.gather(*self._background_tasks, return_exceptions=True)

    # -- events ------------------------------------------------------------------------------------

    def draft(
        self, event_type: str, message: str, *, node_id: str = "", job_id: str = ""
    ) -> EventDraft:
        """Return an event of this moment."""
        now: datetime = self.clock.now()
        return EventDraft(
            time=now, type=event_type, message=message, node_id=node_id, job_id=job_id
        )

    async def save_node(self, node: Node, drafts: Sequence[EventDraft] = ()) -> None:
        """Write a node and events about it, then show them; the caller holds `node_lock`."""
        await self.save_nodes([node], drafts)

    async def save_nodes(self, nodes: Sequence[Node], drafts: Sequence[EventDraft]) -> None:
        """Write nodes and events about them together; the caller holds `node_lock`."""
        async with self.database.unit_of_work() as work:
            for node in nodes:
                await work.nodes.save(node)
            if drafts:
                await work.events.append(drafts)
            await work.commit()
        for node in nodes:
            self.nodes.put(node)
        self.event_changes.notify()
        self.scheduling_wanted.set()


def wrong_state(resource: str, state: str, expected: str) -> PlanariaError:
    """Return the error for a change that the present state does not allow."""
    return PlanariaError(
        ErrorReason.WRONG_STATE,
        f"{resource} is {state}: {expected}",
        {"resource": resource, "state": state},
    )
