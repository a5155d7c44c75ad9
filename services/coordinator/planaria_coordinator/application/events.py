"""Events: read them, and follow them without missing one."""

from collections.abc import AsyncIterator

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import Page
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.job.event import Event

WATCH_PAGE_SIZE = 500


def check_position(after_sequence: int, newest: int) -> None:
    """Raise INVALID_ARGUMENT where a watcher has seen more than there is: in another database."""
    if after_sequence > newest:
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            f"after_sequence is {after_sequence}, must be at most {newest}, the newest event: this "
            "is another database than the one watched before; 0 begins with its first event",
            {"field": "after_sequence", "newest": str(newest)},
        )


class Events:
    """Reads and watches events."""

    def __init__(self, state: SharedState) -> None:
        self._state = state

    async def list(self, page: PageRequest, *, job_id: str = "") -> Page[Event]:
        """List events, the oldest first; of one job unless `job_id` is ""; 1,000 by default.

        A page token is the sequence number of the last event seen.
        """
        size = page.or_default(1000).page_size
        async with self._state.database.unit_of_work() as work:
            found = await work.events.after(page.position(), job_id=job_id, limit=size + 1)
        items = tuple(found[:size])
        token = str(items[-1].sequence) if len(found) > size else ""
        return Page(items=items, next_page_token=token)

    async def check_position(self, after_sequence: int) -> None:
        """Raise INVALID_ARGUMENT for a sequence number that this database has not reached."""
        async with self._state.database.unit_of_work() as work:
            newest = await work.events.newest_sequence()
        check_position(after_sequence, newest)

    async def watch(self, *, after_sequence: int = 0, job_id: str = "") -> AsyncIterator[Event]:
        """Yield every event behind a sequence number, then each one as it happens, for ever.

        A watcher that goes on from the last sequence number it saw misses none, and gets none
        twice. Raises INVALID_ARGUMENT, from the first step, as `check_position`.
        """
        await self.check_position(after_sequence)
        while True:
            count = self._state.event_changes.count
            async with self._state.database.unit_of_work() as work:
                found = await work.events.after(
                    after_sequence, job_id=job_id, limit=WATCH_PAGE_SIZE
                )
            for event in found:
                yield event
                after_sequence = event.sequence
            if len(found) < WATCH_PAGE_SIZE:
                await self._state.event_changes.beyond(count)
