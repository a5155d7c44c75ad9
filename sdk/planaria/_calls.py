"""Every REST call as a value: what to send, and what the answer is. Both clients send them."""

import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from inspect import iscoroutinefunction, signature
from types import MethodType, NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    get_args,
    overload,
)
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

if TYPE_CHECKING:
    from planaria.aio import AsyncClient
    from planaria.client import Client

P = ParamSpec("P")
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


def _post(path: str, model: type[ModelT], body: BaseModel) -> Call[ModelT]:
    return Call(method="POST", path=path, read=model.model_validate, body=body.model_dump())


def _change(path: str, model: type[ModelT]) -> Call[ModelT]:
    return _post(path, model, Change(request_id=new_request_id()))


def _job(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _node(node_id: str) -> str:
    return f"/nodes/{quote(node_id, safe='')}"


class ClientMethod(Generic[P, T]):
    """Decorator for a method of both clients that is written once: it describes a call.

    `Calls.get_job("job-1")` is the call, `Client().get_job("job-1")` sends it and returns the job,
    and `AsyncClient().get_job("job-1")` has to be awaited.
    """

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self._describe = describe

    @overload
    def __get__(
        self, client: None, owner: type["Client"]
    ) -> Callable[Concatenate["Client", P], T]: ...
    @overload
    def __get__(
        self, client: None, owner: type["AsyncClient"]
    ) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type["Calls"]) -> Callable[P, Call[T]]: ...
    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, client: "AsyncClient", owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: Any) -> Callable[..., Any]:
        if owner is Calls:
            return MethodType(self._describe, owner)
        send = _sending(self._describe, awaited=iscoroutinefunction(owner.send))
        return send if client is None else MethodType(send, client)


@cache
def _sending(describe: Callable[..., Call[Any]], *, awaited: bool) -> Any:
    """Return the method of a client that sends what `describe` returns and returns the answer."""

    def send(client: Any, /, *args: Any, **kwargs: Any) -> Any:
        call = describe(client, *args, **kwargs)
        return client.send(call)

    async def send_and_wait(client: Any, /, *args: Any, **kwargs: Any) -> Any:
        call = describe(client, *args, **kwargs)
        return await client.send(call)

    method: Any = wraps(describe)(send_and_wait if awaited else send)
    described = signature(describe)
    (answer,) = get_args(described.return_annotation)
    answer = None if answer is NoneType else answer
    method.__signature__ = described.replace(return_annotation=answer)
    method.__annotations__ = {**describe.__annotations__, "return": answer}
    return method


def _document(job: JobSpec) -> dict[str, Any]:
    if not isinstance(job, JobSpec):
        raise TypeError(
            f"job: must be a planaria.JobSpec and not a {type(job).__name__}: "
            "JobSpec.model_validate(...) makes one of a dict, load_job_file(path) of a file"
        )
    return job.to_document()


class Calls:
    """What both clients can ask for with one request."""

    @ClientMethod
    def info(self) -> Call[Info]:
        """Return the coordinator's version and gRPC endpoints."""
        return _get("/info", Info)

    @ClientMethod
    def submit(
        self, job: JobSpec, *, request_id: str | None = None, resume_job_id: str | None = None
    ) -> Call[Job]:
        """Submit a job.

        Args:
            job: what to train.
            request_id: repeating it returns the same job instead of submitting a second one.
            resume_job_id: a job whose newest checkpoint it begins from, in place of
                `job.init_from`; refused while that job has completed none.
        """
        body = JobSubmission(
            spec=_document(job),
            request_id=request_id or new_request_id(),
            resume_job_id=resume_job_id or "",
        )
        return _post("/jobs", Job, body)

    @ClientMethod
    def plan(self, job: JobSpec, *, resume_job_id: str | None = None) -> Call[DryRun]:
        """Return the plan that a job would get now; nothing is stored or started."""
        body = JobSubmission(spec=_document(job), dry_run=True, resume_job_id=resume_job_id or "")
        return _post("/jobs", DryRun, body)

    @ClientMethod
    def list_jobs(self) -> Call[tuple[Job, ...]]:
        """Return every job, the newest first."""
        return _list("/jobs", "jobs", Job)

    @ClientMethod
    def get_job(self, job_id: str) -> Call[Job]:
        """Return a job as it is now."""
        return _get(_job(job_id), Job)

    @ClientMethod
    def cancel_job(self, job_id: str) -> Call[Job]:
        """End a job; its engines stop and nothing is written."""
        return _change(f"{_job(job_id)}:cancel", Job)

    @ClientMethod
    def pause_job(self, job_id: str) -> Call[Job]:
        """Pause a job after its next commit; its engines keep their state."""
        return _change(f"{_job(job_id)}:pause", Job)

    @ClientMethod
    def resume_job(self, job_id: str) -> Call[Job]:
        """Continue a paused job."""
        return _change(f"{_job(job_id)}:resume", Job)

    @ClientMethod
    def job_plan(self, job_id: str) -> Call[JobPlan]:
        """Return which pipelines run on which nodes, and why."""
        return _get(f"{_job(job_id)}/plan", JobPlan)

    @ClientMethod
    def job_metrics(self, job_id: str) -> Call[tuple[StepMetrics, ...]]:
        """Return the committed steps, the oldest first."""
        return _list(f"{_job(job_id)}/metrics", "metrics", StepMetrics)

    @ClientMethod
    def job_recoveries(self, job_id: str) -> Call[tuple[Recovery, ...]]:
        """Return the changes from one plan to the next, the oldest first."""
        return _list(f"{_job(job_id)}/recoveries", "recoveries", Recovery)

    @ClientMethod
    def job_logs(self, job_id: str) -> Call[tuple[LogLine, ...]]:
        """Return the lines that the job's engines wrote, the oldest first."""
        return _list(f"{_job(job_id)}/logs", "lines", LogLine)

    @ClientMethod
    def list_nodes(self) -> Call[tuple[Node, ...]]:
        """Return every node, by id."""
        return _list("/nodes", "nodes", Node)

    @ClientMethod
    def get_node(self, node_id: str) -> Call[Node]:
        """Return a node as it is now."""
        return _get(_node(node_id), Node)

    @ClientMethod
    def drain_node(self, node_id: str) -> Call[Node]:
        """Free a node of its work without losing a microbatch."""
        return _change(f"{_node(node_id)}:drain", Node)

    @ClientMethod
    def cordon_node(self, node_id: str) -> Call[Node]:
        """Keep new work off a node."""
        return _change(f"{_node(node_id)}:cordon", Node)

    @ClientMethod
    def uncordon_node(self, node_id: str) -> Call[Node]:
        """End a cordon or a drain."""
        return _change(f"{_node(node_id)}:uncordon", Node)

    @ClientMethod
    def evict_node(self, node_id: str) -> Call[Node]:
        """Declare a node lost that is known to be gone for good."""
        return _change(f"{_node(node_id)}:evict", Node)

    @ClientMethod
    def remove_node(self, node_id: str) -> Call[None]:
        """Forget a node that is lost or drained."""
        return Call(method="DELETE", path=_node(node_id), read=lambda _body: None)


def list_events(*, job_id: str = "", after_sequence: int = 0) -> Call[tuple[Event, ...]]:
    path = f"{_job(job_id)}/events" if job_id else "/events"
    return _list(path, "events", Event, after_sequence=after_sequence)
