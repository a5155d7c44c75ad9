"""The client library.

    with planaria.Client() as client:
        job = client.submit(planaria.load_job_file("job.yaml"))
        for event in client.events(job_id=job.id, follow=True):
            print(event.message)

`planaria.aio.AsyncClient` has the same methods for asyncio.
"""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from planaria._calls import POLLS_AFTER_THE_END, Call, Calls, list_events
from planaria._connection import API_PREFIX, body_of, merge_page, read, resolve, unreachable
from planaria._event_stream import READ_TIMEOUT_SECONDS, Decoder, Follower
from planaria.errors import PlanariaError
from planaria.models import Event, Job, StepMetrics

T = TypeVar("T")


class Client(Calls):
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
        with self._connection.errors():
            response = self._http.request(
                call.method, API_PREFIX + call.path, params=dict(call.query), json=call.body
            )
            return body_of(response)

    def send(self, call: Call[T]) -> T:
        """Send a call and return its typed result."""
        return read(call, self.fetch(call))

    def steps(
        self, job_id: str, *, follow: bool = False, poll_seconds: float = 1.0
    ) -> Iterator[StepMetrics]:
        """Yield each committed step once, the oldest first.

        Args:
            job_id: the job.
            follow: go on until the job has ended.
            poll_seconds: how long to wait before asking for more.
        """
        call = page = Calls.job_metrics(job_id)
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
        call = list_events(job_id=job_id, after_sequence=after_sequence)
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

    def _stream(self, path: str, headers: dict[str, str]) -> Iterator[Event]:
        decoder = Decoder()
        with (
            self._connection.errors(),
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
