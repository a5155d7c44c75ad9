"""A clock for tests."""

from datetime import UTC, datetime, timedelta


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

    def step(self, seconds: float) -> None:
        """Set the wall clock, as an administrator or NTP does: no time passes."""
        self._start += timedelta(seconds=seconds)
