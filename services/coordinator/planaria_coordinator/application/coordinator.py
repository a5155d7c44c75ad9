"""The coordinator as one object: what the composition root builds and the entry points use."""

from collections.abc import Callable

from planaria_common.clock import Clock
from planaria_coordinator.application.cluster import Cluster
from planaria_coordinator.application.events import Events
from planaria_coordinator.application.jobs import Jobs
from planaria_coordinator.application.options import Options
from planaria_coordinator.application.ports import Database, Planner, SchedulingPolicy


class Coordinator:
    """All services over one database.

    Args:
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
        raise NotImplementedError

    jobs: Jobs
    cluster: Cluster
    events: Events

    async def start(self) -> None:
        """Read what the database knows, and begin to act. Call before the servers listen."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop acting; engines go on. What is in the database suffices to start again."""
        raise NotImplementedError

    async def check_ready(self) -> None:
        """Do nothing, or raise UnavailableError naming the part that does not answer."""
        raise NotImplementedError
