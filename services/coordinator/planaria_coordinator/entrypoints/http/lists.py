"""A page of each list that REST returns, read from a page of the application."""

from pydantic import Field

from planaria.models import Body, Event, Job, LogLine, Node, Recovery, StepMetrics


class JobList(Body):
    """A page of jobs, the newest first."""

    jobs: tuple[Job, ...] = Field(validation_alias="items")
    next_page_token: str = Field(description="For the next page; empty at the end.")


class NodeList(Body):
    """A page of nodes, by id."""

    nodes: tuple[Node, ...] = Field(validation_alias="items")
    next_page_token: str = Field(description="For the next page; empty at the end.")


class EventList(Body):
    """A page of events, the oldest first."""

    events: tuple[Event, ...] = Field(validation_alias="items")
    next_page_token: str = Field(description="For the next page; empty at the end.")


class MetricsList(Body):
    """A page of committed steps, the oldest first."""

    metrics: tuple[StepMetrics, ...] = Field(validation_alias="items")
    next_page_token: str = Field(description="For the next page; empty at the end.")


class RecoveryList(Body):
    """A page of recoveries, the oldest first."""

    recoveries: tuple[Recovery, ...] = Field(validation_alias="items")
    next_page_token: str = Field(description="For the next page; empty at the end.")


class LogLineList(Body):
    """A page of a job's log, the oldest lines first."""

    lines: tuple[LogLine, ...] = Field(validation_alias="items")
    next_page_token: str = Field(description="For the next page; empty at the end.")
