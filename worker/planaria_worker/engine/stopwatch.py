"""Where the seconds of a step go: every one has a name."""

import time
from collections.abc import Callable


class Stopwatch:
    """Splits the time of one thread into kinds, without gaps.

    Attributes:
        laps: number of splits since the start; stands still when the thread hangs.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._last = now()
        self._seconds: dict[str, float] = {}
        self.laps = 0

    def restart(self) -> None:
        """Begins a new step."""
        self._seconds = {}
        self._last = self._now()

    def lap(self, kind: str) -> float:
        """Gives the time since the last lap its name, and returns it."""
        now = self._now()
        seconds, self._last = now - self._last, now
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        self.laps += 1
        return seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of this step by kind."""
        return dict(self._seconds)
