"""The client library.

    with planaria.Client() as client:
        job = client.submit(planaria.load_job_file("job.yaml"))
        for event in client.events(job_id=job.id, follow=True):
            print(event.message)

`planaria.aio.AsyncClient` has the same methods for asyncio.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from planaria import _calls
from planaria._calls import POLLS_AFTER_THE_END, Call
from planaria._connection import (
    API_PREFIX,
    body_of,
    merge_page,
    read,
    resolve,
    unreachable,
)
from planaria._event_stream import READ_TIMEOUT_SECONDS, Decoder, Follower
from planaria.errors import PlanariaError
from planaria.job import JobSpec
from planaria.models import (
    DryRun,
    Event,
    Info,
    Job,
    JobPlan,
    LogLine,
    Node,
    Recovery,
    StepMetrics,
)

T = TypeVar("T")


class Client:
    """Talks to a coordinator over REST; not for several threads at once.

    Every method raises a subclass of `planaria.PlanariaError`: NotFoundError, ConflictError,
    InvalidArgumentError, AccessError, UnavailableError or InternalError.

    Args:
        address: URL of the coordinator; by default PLANARIA_ADDRESS, else the cluster that
            `planaria up` started on this machine, else http://127.0.0.1:8080.
        token: the credential; by default PLANARIA_TOKEN, else that of the cluster on this machine.
        timeout_seconds: how long to wait for an answer.
        reconnect_attempts: how often in a row a followed stream is opened again after it broke.
        transport: how requests are sent; for tests.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        reconnect_attempts: int = 30,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._connection = resolve(address, token)
        self._reconnect_attempts = reconnect_attempts
        self._http = httpx.Client(
            **self._connection.options(), timeout=timeout_seconds, transport=transport
        )

    @property
    def address(self) -> str:
        """URL of the coordinator."""
        return self._connection.address

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def fetch(self, call: Call[Any]) -> Any:
        """Send a call and return the body as REST sent it; the pages of a list are joined."""
        whole: dict[str, Any] | None = None
        while True:
            body = self._fetch_page(call)
            if not call.list_key:
                return body
            whole = merge_page(call, whole, body)
            if not whole.get("next_page_token"):
                return whole
            call = call.after_page(whole["next_page_token"])

    def _fetch_page(self, call: Call[Any]) -> Any:
        with self._transport_errors():
            response = self._http.request(
                call.method, API_PREFIX + call.path, params=dict(call.query), json=call.body
            )
        return body_of(response)

    def send(self, call: Call[T]) -> T:
        """Send a call and return its typed result."""
        return read(call, self.fetch(call))

    def info(self) -> Info:
        """Return the coordinator's version and gRPC endpoints."""
        return self.send(_calls.info())

    def submit(
        self, job: JobSpec, *, request_id: str | None = None, resume_job_id: str | None = None
    ) -> Job:
        """Submit a job.

        Args:
            job: what to train.
            request_id: repeating it returns the same job instead of submitting a second one.
            resume_job_id: a job whose newest checkpoint it begins from, in place of
                `job.init_from`; refused while that job has completed none.
        """
        call = _calls.submit(job, request_id=request_id, resume_job_id=resume_job_id)
        return self.send(call)

    def plan(self, job: JobSpec) -> DryRun:
        """Return the plan that a job would get now; nothing is stored or started."""
        return self.send(_calls.dry_run(job))

    def list_jobs(self) -> tuple[Job, ...]:
        return self.send(_calls.list_jobs())

    def get_job(self, job_id: str) -> Job:
        return self.send(_calls.get_job(job_id))

    def cancel_job(self, job_id: str) -> Job:
        """End a job; its engines stop and nothing is written."""
        return self.send(_calls.cancel_job(job_id))

    def pause_job(self, job_id: str) -> Job:
        """Pause a job after its next commit; its engines keep their state."""
        return self.send(_calls.pause_job(job_id))

    def resume_job(self, job_id: str) -> Job:
        """Continue a paused job."""
        return self.send(_calls.resume_job(job_id))

    def job_plan(self, job_id: str) -> JobPlan:
        """Return which pipelines run on which nodes, and why."""
        return self.send(_calls.job_plan(job_id))

    def job_metrics(self, job_id: str) -> tuple[StepMetrics, ...]:
        """Return the committed steps, the oldest first."""
        return self.send(_calls.job_metrics(job_id))

    def steps(
        self, job_id: str, *, follow: bool = False, poll_seconds: float = 1.0
    ) -> Iterator[StepMetrics]:
        """Yield each committed step once, the oldest first.

        Args:
            job_id: the job.
            follow: go on until the job has ended.
            poll_seconds: how long to wait before asking for more.
        """
        call = page = _calls.job_metrics(job_id)
        newest, polls_left = -1, POLLS_AFTER_THE_END
        while True:
            job = self.get_job(job_id)
            while True:
                body = self._fetch_page(page)
                for step in read(call, body):
                    if step.step > newest:
                        newest = step.step
                        yield step
                if not body.get("next_page_token"):
                    break
                page = call.after_page(body["next_page_token"])
            polls_left -= job.is_done
            if not follow or newest + 1 >= job.num_commits or not polls_left:
                return
            time.sleep(poll_seconds)

    def job_recoveries(self, job_id: str) -> tuple[Recovery, ...]:
        """Return the changes from one plan to the next, the oldest first."""
        return self.send(_calls.job_recoveries(job_id))

    def job_logs(self, job_id: str) -> tuple[LogLine, ...]:
        """Return the lines that the job's engines wrote, the oldest first."""
        return self.send(_calls.job_logs(job_id))

    def wait_for_job(self, job_id: str, *, poll_seconds: float = 0.5) -> Job:
        """Return the job once it has succeeded.

        Raises:
            JobFailedError: it failed or was cancelled.
        """
        job = self.get_job(job_id)
        while not job.is_done:
            time.sleep(poll_seconds)
            job = self.get_job(job_id)
        job.raise_unless_succeeded()
        return job

    def events(
        self, *, job_id: str = "", after_sequence: int = 0, follow: bool = False
    ) -> Iterator[Event]:
        """Yield what happened, the oldest first.

        Args:
            job_id: only events of this job.
            after_sequence: only events after this one.
            follow: go on with each event as it happens. A broken stream is opened again where it
                broke, so that no event is missed.
        """
        call = _calls.events(job_id=job_id, after_sequence=after_sequence)
        if not follow:
            yield from self.send(call)
            return
        follower = Follower(after_sequence=after_sequence, attempts=self._reconnect_attempts)
        while True:
            try:
                for event in self._stream(call.path, follower.headers()):
                    if follower.saw(event):
                        yield event
                raise unreachable(self.address, httpx.ReadError("the stream ended"))
            except PlanariaError as error:
                time.sleep(follower.pause_after(error))

    def list_nodes(self) -> tuple[Node, ...]:
        return self.send(_calls.list_nodes())

    def get_node(self, node_id: str) -> Node:
        return self.send(_calls.get_node(node_id))

    def drain_node(self, node_id: str) -> Node:
        """Free a node of its work without losing a microbatch."""
        return self.send(_calls.drain_node(node_id))

    def cordon_node(self, node_id: str) -> Node:
        """Keep new work off a node."""
        return self.send(_calls.cordon_node(node_id))

    def uncordon_node(self, node_id: str) -> Node:
        """End a cordon or a drain."""
        return self.send(_calls.uncordon_node(node_id))

    def remove_node(self, node_id: str) -> None:
        """Forget a node that is lost or drained."""
        self.send(_calls.remove_node(node_id))

    def _stream(self, path: str, headers: dict[str, str]) -> Iterator[Event]:
        decoder = Decoder()
        with (
            self._transport_errors(),
            self._http.stream(
                "GET", API_PREFIX + path, headers=headers, timeout=READ_TIMEOUT_SECONDS
            ) as response,
        ):
            if response.is_error:
                response.read()
                body_of(response)
            for line in response.iter_lines():
                event = decoder.feed(line)
                if event is not None:
                    yield event

    @contextmanager
    def _transport_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise unreachable(self.address, error) from error
