"""What endpoints are given: the application's services, and the parameters they share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query, Request

from planaria.models import Info
from planaria_common.clock import Clock
from planaria_coordinator.application.cluster import Cluster
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.application.events import Events
from planaria_coordinator.application.jobs.jobs import Jobs
from planaria_coordinator.application.paging import MAX_PAGE_SIZE, PageRequest
from planaria_coordinator.application.statistics import Statistics


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


def _page(
    page_size: Annotated[
        int, Query(ge=0, le=MAX_PAGE_SIZE, description="At most so many; 0 for the default.")
    ] = 0,
    page_token: Annotated[
        str, Query(max_length=64, description="next_page_token of the page before.")
    ] = "",
) -> PageRequest:
    return PageRequest(page_size=page_size, page_token=page_token)


PageDep = Annotated[PageRequest, Depends(_page)]
AfterSequence = Annotated[int, Query(ge=0, lt=2**63, description="Only events after this one.")]
