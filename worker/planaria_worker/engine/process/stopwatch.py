"""Where the seconds of a step go: every one has a name."""

import time
from collections.abc import Callable

from planaria_worker.engine.process.trace import Trace

_COMPUTING = frozenset(("evaluate", "forward", "backward", "device", "update"))


class Stopwatch:
    """Splits the time of one thread into kinds, without gaps.

    Attributes:
        laps: number of splits since the start; stands still when the thread hangs.
        longest_seconds: of the laps that went to computing.
        trace: where every lap is written.
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, trace: Trace | None = None
    ) -> None:
        self.trace = trace or Trace()
        self._now = now
        self._last = now()
        self._step = 0
        self._seconds: dict[str, float] = {}
        self._compute_end: float | None = None
        self.laps = 0
        self.longest_seconds = 0.0

    def restart(self, step: int) -> None:
        """Begins a new step."""
        self.lap("between")
        self._seconds = {}
        self._step = step

    def lap(self, kind: str, microbatch: int | None = None) -> float:
        """Gives the time since the last lap its name, and returns it."""
        now = self._now()
        self.trace.span(kind, self._last, now, step=self._step, microbatch=microbatch)
        seconds, self._last = now - self._last, now
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        self.laps += 1
        if kind in _COMPUTING:
            self.longest_seconds = max(self.longest_seconds, seconds)
            self._compute_end = now
        return seconds

    @property
    def idle_seconds(self) -> float | None:
        """Seconds since the last pass or update was finished; None before the first.

        An aborted pass does not count: its result is thrown away.
        """
        return None if self._compute_end is None else self._now() - self._compute_end

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of this step by kind."""
        return dict(self._seconds)
