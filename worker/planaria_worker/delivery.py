"""Messages that must arrive, kept in order while nobody is there to take them."""

from collections import deque
from typing import Generic, Protocol, TypeVar

DEFAULT_CAPACITY = 100_000
MAX_UNACKNOWLEDGED = 10_000
"""A report takes less than a kilobyte, and while all parts live few wait for more than a second."""


class Numbered(Protocol):
    """A message whose number tells a report from others, which have none."""

    report_number: int


MessageT = TypeVar("MessageT", bound=Numbered)


class DeliveryQueue(Generic[MessageT]):
    """A queue whose head stays until it has been written, and reports until they are stored.

    A message counts as delivered when the stream took it; what a broken stream swallowed is made
    good by the coordinator, which repeats directives that have no result and compares the engines
    of the next Hello with those it counts on. Reports nobody asks for again: they are kept until
    the coordinator says that they are in its database, and sent again in the next session.
    """

    def __init__(
        self, capacity: int = DEFAULT_CAPACITY, max_unacknowledged: int = MAX_UNACKNOWLEDGED
    ) -> None:
        self._capacity = capacity
        self._max_unacknowledged = max_unacknowledged
        self._messages: deque[MessageT] = deque()
        self._unacknowledged: deque[MessageT] = deque()
        self._num_reports = 0
        self._newest_stored = 0
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def head(self) -> MessageT | None:
        """The next message, which stays."""
        return self._messages[0] if self._messages else None

    def post(self, message: MessageT) -> None:
        """Queue a message; when the queue is full the oldest one is dropped and counted."""
        self._messages.append(message)
        self._drop_oldest()

    def report(self, message: MessageT) -> None:
        """Number and queue a message that is kept until the coordinator has stored it."""
        self._num_reports += 1
        message.report_number = self._num_reports
        self.post(message)

    def pop(self, delivered: MessageT) -> None:
        """Take out the head, unless a full queue has dropped it meanwhile."""
        if self.head is not delivered:
            return
        self._messages.popleft()
        if delivered.report_number > self._newest_stored:
            self._unacknowledged.append(delivered)
            if len(self._unacknowledged) > self._max_unacknowledged:
                self._unacknowledged.popleft()
                self.num_dropped += 1

    def acknowledge(self, report_number: int) -> None:
        """Forget reports: those up to this one are stored."""
        self._newest_stored = max(self._newest_stored, report_number)
        while self._unacknowledged and self._unacknowledged[0].report_number <= report_number:
            self._unacknowledged.popleft()

    def send_again(self) -> None:
        """Queue first what may not be stored: its receiver is gone."""
        self._messages.extendleft(reversed(self._unacknowledged))
        self._unacknowledged.clear()
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._messages) > self._capacity:
            self._messages.popleft()
            self.num_dropped += 1
