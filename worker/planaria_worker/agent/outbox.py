"""What the agent owes the coordinator."""

import asyncio

from planaria.api.worker.v1.worker_service_pb2 import SessionRequest
from planaria_worker.delivery import DEFAULT_CAPACITY, MAX_UNACKNOWLEDGED, DeliveryQueue


class Outbox(DeliveryQueue[SessionRequest]):
    """A delivery queue that can be waited for."""

    def __init__(
        self, capacity: int = DEFAULT_CAPACITY, max_unacknowledged: int = MAX_UNACKNOWLEDGED
    ) -> None:
        super().__init__(capacity, max_unacknowledged)
        self._filled = asyncio.Event()

    def post(self, message: SessionRequest) -> None:
        """Queue a message; when the queue is full the oldest one is dropped and counted."""
        super().post(message)
        self._filled.set()

    def send_again(self) -> None:
        """Queue first what may not be stored: a session has ended, or its coordinator."""
        super().send_again()
        self._filled.set()

    async def next(self) -> SessionRequest:
        """Wait for a message and return it without taking it out."""
        while (head := self.head) is None:
            self._filled.clear()
            await self._filled.wait()
        return head
