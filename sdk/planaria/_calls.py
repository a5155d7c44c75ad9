"""Every REST call as a value: what to send, and what the answer is. Both clients send them."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from planaria.job import JobSpec
from planaria.models import (
    Change,
    DryRun,
    Event,
    Info,
    Job,
    JobPlan,
    JobSubmission,
    LogLine,
    Node,
    Recovery,
    StepMetrics,
)

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

POLLS_AFTER_THE_END = 3
"""The last steps of a job may be stored a moment after its end, and some are never reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request and how to read its answer.

    Attributes:
        list_key: under which name a list's answer has its items; empty for anything but a list.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    query: Mapping[str, str | int] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    list_key: str = ""

    def after_page(self, page_token: str) -> "Call[T]":
        """Return the call for the page that follows."""
        return replace(self, query={**self.query, "page_token": page_token})


def new_request_id() -> str:
    """Return an id under which the coordinator recognises a repetition."""
    return secrets.token_hex(16)


def _get(path: str, model: type[ModelT]) -> Call[ModelT]:
    return Call(method="GET", path=path, read=model.model_validate)


def _list(path: str, key: str, model: type[ModelT], **query: str | int) -> Call[tuple[ModelT, ...]]:
    def read(body: Any) -> tuple[ModelT, ...]:
        return tuple(model.model_validate(item) for item in body[key])

    given = {name: value for name, value in query.items() if value}
    return Call(method="GET", path=path, read=read, query=given, list_key=key)


def _change(path: str, model: type[ModelT]) -> Call[ModelT]:
    body = Change(request_id=new_request_id()).model_dump()
    return Call(method="POST", path=path, read=model.model_validate, body=body)


def _job(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _node(node_id: str) -> str:
    return f"/nodes/{quote(node_id, safe='')}"


def info() -> Call[Info]:
    return _get("/info", Info)


def submit(
    job: JobSpec, *, request_id: str | None = None, resume_job_id: str | None = None
) -> Call[Job]:
    body = JobSubmission(
        spec=job.to_document(),
        request_id=request_id or new_request_id(),
        resume_job_id=resume_job_id or "",
    )
    return Call(method="POST", path="/jobs", read=Job.model_validate, body=body.model_dump())


def dry_run(job: JobSpec, *, resume_job_id: str | None = None) -> Call[DryRun]:
    body = JobSubmission(
        spec=job.to_document(), dry_run=True, resume_job_id=resume_job_id or ""
    ).model_dump()
    return Call(method="POST", path="/jobs", read=DryRun.model_validate, body=body)


def get_job(job_id: str) -> Call[Job]:
    return _get(_job(job_id), Job)


def list_jobs() -> Call[tuple[Job, ...]]:
    return _list("/jobs", "jobs", Job)


def cancel_job(job_id: str) -> Call[Job]:
    return _change(f"{_job(job_id)}:cancel", Job)


def pause_job(job_id: str) -> Call[Job]:
    return _change(f"{_job(job_id)}:pause", Job)


def resume_job(job_id: str) -> Call[Job]:
    return _change(f"{_job(job_id)}:resume", Job)


def job_plan(job_id: str) -> Call[JobPlan]:
    return _get(f"{_job(job_id)}/plan", JobPlan)


def job_metrics(job_id: str) -> Call[tuple[StepMetrics, ...]]:
    return _list(f"{_job(job_id)}/metrics", "metrics", StepMetrics)


def job_recoveries(job_id: str) -> Call[tuple[Recovery, ...]]:
    return _list(f"{_job(job_id)}/recoveries", "recoveries", Recovery)


def job_logs(job_id: str) -> Call[tuple[LogLine, ...]]:
    return _list(f"{_job(job_id)}/logs", "lines", LogLine)


def events(*, job_id: str = "", after_sequence: int = 0) -> Call[tuple[Event, ...]]:
    path = f"{_job(job_id)}/events" if job_id else "/events"
    return _list(path, "events", Event, after_sequence=after_sequence)


def list_nodes() -> Call[tuple[Node, ...]]:
    return _list("/nodes", "nodes", Node)


def get_node(node_id: str) -> Call[Node]:
    return _get(_node(node_id), Node)


def drain_node(node_id: str) -> Call[Node]:
    return _change(f"{_node(node_id)}:drain", Node)


def cordon_node(node_id: str) -> Call[Node]:
    return _change(f"{_node(node_id)}:cordon", Node)


def uncordon_node(node_id: str) -> Call[Node]:
    return _change(f"{_node(node_id)}:uncordon", Node)


def remove_node(node_id: str) -> Call[None]:
    return Call(method="DELETE", path=_node(node_id), read=lambda _body: None)
