"""The client library for asyncio: `planaria.Client` with await."""

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from planaria._calls import POLLS_AFTER_THE_END, Call, Calls, list_events
from planaria._connection import API_PREFIX, body_of, merge_page, read, resolve, unreachable
from planaria._event_stream import READ_TIMEOUT_SECONDS, Decoder, Follower
from planaria.errors import PlanariaError
from planaria.models import Event, Job, StepMetrics

T = TypeVar("T")


class AsyncClient(Calls):
    """Talks to a coordinator over REST; `planaria.Client` documents arguments and errors."""

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        reconnect_attempts: int = 30,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = resolve(address, token)
        self._reconnect_attempts = reconnect_attempts
        self._http = httpx.AsyncClient(
            **self._connection.options(), timeout=timeout_seconds, transport=transport
        )

    @property
    def address(self) -> str:
        """URL of the coordinator."""
        return self._connection.address

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def fetch(self, call: Call[Any]) -> Any:
        """Send a call and return the body as REST sent it; the pages of a list are joined."""
        whole: dict[str, Any] | None = None
        while True:
            body = await self._fetch_page(call)
            if not call.list_key:
                return body
            whole = merge_page(call, whole, body)
            if not whole.get("next_page_token"):
                return whole
            call = call.after_page(whole["next_page_token"])

    async def _fetch_page(self, call: Call[Any]) -> Any:
        with self._connection.errors():
            response = await self._http.request(
                call.method, API_PREFIX + call.path, params=dict(call.query), json=call.body
            )
            return body_of(response)

    async def send(self, call: Call[T]) -> T:
        """Send a call and return its typed result."""
        return read(call, await self.fetch(call))

    async def steps(
        self, job_id: str, *, follow: bool = False, poll_seconds: float = 1.0
    ) -> AsyncGenerator[StepMetrics]:
        """Yield each committed step once, the oldest first.

        Args:
            job_id: the job.
            follow: go on until the job has ended.
            poll_seconds: how long to wait before asking for more.
        """
        call = page = Calls.job_metrics(job_id)
        newest, polls_left = -1, POLLS_AFTER_THE_END
        while True:
            job = await self.get_job(job_id)
            while True:
                body = await self._fetch_page(page)
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
            await asyncio.sleep(poll_seconds)

    async def wait_for_job(self, job_id: str, *, poll_seconds: float = 0.5) -> Job:
        """Return the job once it has succeeded.

        Raises:
            JobFailedError: it failed or was cancelled.
        """
        job = await self.get_job(job_id)
        while not job.is_done:
            await asyncio.sleep(poll_seconds)
            job = await self.get_job(job_id)
        job.raise_unless_succeeded()
        return job

    async def events(
        self, *, job_id: str = "", after_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[Event]:
        """Yield what happened, the oldest first.

        Args:
            job_id: only events of this job.
            after_sequence: only events after this one.
            follow: go on with each event as it happens. A broken stream is opened again where it
                broke, so that no event is missed.
        """
        call = list_events(job_id=job_id, after_sequence=after_sequence)
        if not follow:
            for event in await self.send(call):
                yield event
            return
        follower = Follower(after_sequence=after_sequence, attempts=self._reconnect_attempts)
        while True:
            try:
                async for event in self._stream(call.path, follower.headers()):
                    if follower.saw(event):
                        yield event
                raise unreachable(self.address, httpx.ReadError("the stream ended"))
            except PlanariaError as error:
                await asyncio.sleep(follower.pause_after(error))

    async def _stream(self, path: str, headers: dict[str, str]) -> AsyncGenerator[Event]:
        decoder = Decoder()
        with self._connection.errors():
            async with self._http.stream(
                "GET", API_PREFIX + path, headers=headers, timeout=READ_TIMEOUT_SECONDS
            ) as response:
                if response.is_error:
                    await response.aread()
                    body_of(response)
                async for line in response.aiter_lines():
                    event = decoder.feed(line)
                    if event is not None:
                        yield event
