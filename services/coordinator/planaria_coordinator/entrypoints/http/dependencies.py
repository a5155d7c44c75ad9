"""What endpoints are given: the application's services, and the parameters they share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Query, Request

from planaria.models import Info
from planaria_common.clock import Clock
from planaria_coordinator.application.cluster import Cluster
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.application.events import Events
from planaria_coordinator.application.jobs.jobs import Jobs
from planaria_coordinator.application.statistics import Statistics

MAX_PAGE_SIZE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Provided:
    """What the composition root gives to the HTTP server.

    Attributes:
        coordinator: the application.
        statistics: totals for monitoring.
        clock: the time.
        stopping: set when the server stops.
        info: returns what /api/v1/info says; ports are known only once the servers listen.
    """

    coordinator: Coordinator
    statistics: Statistics
    clock: Clock
    stopping: asyncio.Event
    info: Callable[[], Info]


def _provided(request: Request) -> Provided:
    provided: Provided = request.app.state.provided
    return provided


ProvidedDep = Annotated[Provided, Depends(_provided)]


def _jobs(provided: ProvidedDep) -> Jobs:
    return provided.coordinator.jobs


def _cluster(provided: ProvidedDep) -> Cluster:
    return provided.coordinator.cluster


def _events(provided: ProvidedDep) -> Events:
    return provided.coordinator.events


JobsDep = Annotated[Jobs, Depends(_jobs)]
ClusterDep = Annotated[Cluster, Depends(_cluster)]
EventsDep = Annotated[Events, Depends(_events)]

PageSize = Annotated[
    int, Query(ge=0, le=MAX_PAGE_SIZE, description="At most so many; 0 for the default.")
]
PageToken = Annotated[str, Query(max_length=64, description="next_page_token of the page before.")]
AfterSequence = Annotated[int, Query(ge=0, lt=2**63, description="Only events after this one.")]
