"""Request ids: a change that is asked for twice is made once."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final
from weakref import WeakValueDictionary

from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.ports import Database, RequestRecord, UnitOfWork

REMEMBERED_FOR: Final = timedelta(days=2)
"""Nobody repeats a request for longer. Promised in docs/reference/rest.md."""


class Request:
    """One request under way.

    Attributes:
        known: the resource that the same request has changed before; None the first time.
    """

    def __init__(self, record: RequestRecord, known: str | None) -> None:
        self.known = known
        self._record = record

    async def remember(self, work: UnitOfWork) -> None:
        """Keep the request, in the transaction that makes its change where there is one."""
        if self._record.request_id and self.known is None:
            await work.requests.forget_before(self._record.create_time - REMEMBERED_FOR)
            await work.requests.add(self._record)


class Requests:
    """Knows every request of the last two days that carried an id."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def once(
        self, request_id: str, method: str, contents: Mapping[str, Any], resource_id: str
    ) -> AsyncIterator[Request]:
        """Hold off repetitions of a request while it is carried out.

        Args:
            request_id: chosen by the caller; "" for a request that may be made again.
            method: what is asked for.
            contents: all that distinguishes it from another request.
            resource_id: what it changes or creates.

        Raises:
            PlanariaError: REQUEST_ID_REUSED when the id was used for something else.
        """
        text = json.dumps(contents, sort_keys=True, separators=(",", ":"), default=str)
        record = RequestRecord(
            request_id=request_id,
            method=method,
            fingerprint=hashlib.sha256(text.encode()).hexdigest(),
            resource_id=resource_id,
            create_time=self._clock.now(),
        )
        if not request_id:
            yield Request(record, None)
            return
        lock = self._locks.setdefault(request_id, asyncio.Lock())
        async with lock:
            yield Request(record, await self._made_before(record))

    async def make(
        self,
        request_id: str,
        method: str,
        contents: Mapping[str, Any],
        resource_id: str,
        change: Callable[[], Awaitable[None]],
    ) -> None:
        """Make a change whose request is kept behind it; see `once`."""
        async with self.once(request_id, method, contents, resource_id) as request:
            if request.known is None:
                await change()
                await self._keep(request)

    async def _made_before(self, record: RequestRecord) -> str | None:
        async with self._database.unit_of_work() as work:
            known = await work.requests.get(record.request_id)
        if known is None:
            return None
        if (known.method, known.fingerprint) != (record.method, record.fingerprint):
            raise PlanariaError(
                ErrorReason.REQUEST_ID_REUSED,
                f"request id {record.request_id} was used before for something else: use a new one",
                {"request_id": record.request_id},
            )
        return known.resource_id

    async def _keep(self, request: Request) -> None:
        """Keep a request whose change is stored already; making it again would be harmless."""
        async with self._database.unit_of_work() as work:
            await request.remember(work)
            await work.commit()
