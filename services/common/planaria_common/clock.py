"""Time as a dependency: what needs it is given a Clock, so tests decide what time it is."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where a part reads the time."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards; only differences mean something."""
        ...

    def now(self) -> datetime:
        """Return the wall-clock time, in UTC."""
        ...


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)
