"""Time as a dependency: what needs it is given a Clock, so tests decide what time it is."""

import time
from datetime import UTC, datetime, timedelta
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


class FakeClock:
    """A clock that moves only when a test advances it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_seconds = 0.0

    def monotonic(self) -> float:
        return self._elapsed_seconds

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_seconds)

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock cannot run backwards: {seconds}")
        self._elapsed_seconds += seconds
