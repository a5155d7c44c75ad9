"""Messages that must reach the coordinator, kept in order while there is no session."""

import asyncio
from collections import deque

from planaria.api.worker.v1.worker_service_pb2 import SessionRequest

DEFAULT_CAPACITY = 100_000


class Outbox:
    """A queue whose head stays until it has been written.

    A message counts as delivered when the stream took it; what a broken stream swallowed is made
    good by the coordinator, which repeats directives that have no result and compares the engines
    of the next Hello with those it counts on.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._messages: deque[SessionRequest] = deque(maxlen=capacity)
        self._filled = asyncio.Event()
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._messages)

    def post(self, message: SessionRequest) -> None:
        """Queue a message; when the queue is full the oldest one is dropped and counted."""
        self.num_dropped += len(self._messages) == self._messages.maxlen
        self._messages.append(message)
        self._filled.set()

    async def head(self) -> SessionRequest:
        """Wait for a message and return it without taking it out."""
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        return self._messages[0]

    def pop(self, delivered: SessionRequest) -> None:
        """Take out the head, unless a full queue has dropped it meanwhile."""
        if self._messages and self._messages[0] is delivered:
            self._messages.popleft()
