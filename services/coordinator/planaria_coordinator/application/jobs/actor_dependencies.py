"""What a job's actor needs of the rest of the coordinator."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from planaria_common.clock import Clock
from planaria_coordinator.application.agents.dispatcher import Dispatcher
from planaria_coordinator.application.changes import Changes
from planaria_coordinator.application.options import Options
from planaria_coordinator.application.ports import Database, Planner, SchedulingPolicy
from planaria_coordinator.domain.engines.node import Node
from planaria_coordinator.domain.job.job import Condition, Job

if TYPE_CHECKING:
    from planaria_coordinator.application.jobs.job_actor import JobActor


class ActorDependencies(Protocol):
    """What an actor sees of the rest of the coordinator."""

    @property
    def database(self) -> Database: ...
    @property
    def planner(self) -> Planner: ...
    @property
    def policy(self) -> SchedulingPolicy: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def options(self) -> Options: ...
    @property
    def dispatcher(self) -> Dispatcher: ...
    @property
    def event_changes(self) -> Changes: ...

    def all_nodes(self) -> tuple[Node, ...]: ...

    def jobs_with_nodes(self) -> tuple[Job, ...]: ...

    def conditions(self, node_ids: Collection[str]) -> tuple[Condition, ...]:
        """Return what is to be known of the nodes of a job."""
        ...

    def decided(self, actor: "JobActor") -> None:
        """A decision was carried out; it may have freed nodes or ended the job."""
        ...
