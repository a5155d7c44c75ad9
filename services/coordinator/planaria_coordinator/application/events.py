"""Events: read them, and follow them without missing one."""

from collections.abc import AsyncIterator

from planaria_coordinator.application.ports import Page
from planaria_coordinator.domain.event import Event


class Events:
    """Reads and watches events."""

    async def list(
        self, *, job_id: str = "", page_size: int = 0, page_token: str = ""
    ) -> Page[Event]:
        """List events, the oldest first; of one job unless `job_id` is ""; 1,000 by default."""
        raise NotImplementedError

    def watch(self, *, after_sequence: int = 0, job_id: str = "") -> AsyncIterator[Event]:
        """Yield every event behind a sequence number, then each one as it happens, for ever.

        A watcher that goes on from the last sequence number it saw misses none.
        """
        raise NotImplementedError
