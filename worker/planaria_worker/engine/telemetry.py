"""What an engine knows about itself: its trace, the time of its training thread, and its state.

The trace is inert unless PLANARIA_ENGINE_TRACE names a folder. Then each engine appends to `<engine
id>.jsonl` there (slashes of the id are dots). A line is a JSON object: a span `{"span": "forward",
"start": 1.25, "end": 1.5, "step": 3, "microbatch": 2}` of the training thread, whose spans leave no
gap within a step, or an event `{"event": "commit", "at": 1.5, ...}`. Times are seconds of
CLOCK_MONOTONIC, which all processes of a machine share. Each line is one write into the page cache,
so it survives kill -9 of the engine, and nothing waits for a disk.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from planaria.api.worker.v1.report_pb2 import EngineState

ENVIRONMENT_VARIABLE = "PLANARIA_ENGINE_TRACE"
_COMPUTING = frozenset(("evaluate", "forward", "backward", "device", "update"))


class Trace:
    """The file of an engine's trace; any thread may write to it."""

    def __init__(self, path: Path | None = None) -> None:
        self._file: int | None = None
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], engine_id: str) -> Self:
        """Open the file that the variable asks for; unset or empty, write nothing.

        Raises:
            OSError: the folder cannot be written to.
        """
        folder = environment.get(ENVIRONMENT_VARIABLE, "")
        return cls(Path(folder) / f"{engine_id.replace('/', '.')}.jsonl" if folder else None)

    def span(self, kind: str, start: float, end: float, **detail: int | None) -> None:
        """Write what a stretch of time went to."""
        if self._file is not None:
            self._write({"span": kind, "start": start, "end": end, **detail})

    def event(self, name: str, **detail: object) -> None:
        """Write that something happened now."""
        if self._file is not None:
            self._write({"event": name, "at": time.perf_counter(), **detail})

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is not None:
            os.write(self._file, json.dumps(line).encode() + b"\n")


class Stopwatch:
    """Splits the time of the training thread into kinds, without gaps.

    Attributes:
        laps: number of splits since the start; stays the same while the thread hangs.
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
        self._compute_end: float | None = None
        self.laps = 0
        self.longest_seconds = 0.0

    def restart(self, step: int) -> None:
        """Begin a new step."""
        self.lap("between")
        self._step = step

    def lap(self, kind: str, microbatch: int | None = None) -> float:
        """Name the time since the last lap, and return it."""
        now = self._now()
        self.trace.span(kind, self._last, now, step=self._step, microbatch=microbatch)
        seconds, self._last = now - self._last, now
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


class Vitals:
    """The state of an engine: written by the training thread, read by any thread at any time.

    Attributes:
        state: what the engine is doing; changed by `enter`.
        committed_steps: also the version of its layers and the index of the step in flight.
        data_address: where peers fetch layers.
        store_address: its rendezvous store.
        on_change: called when the state has changed, from the thread that changed it.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.state = EngineState.ENGINE_STATE_STARTING
        self.committed_steps = 0
        self.data_address = ""
        self.store_address = ""
        self._on_change = on_change

    def enter(self, state: EngineState.ValueType) -> None:
        """Change the state."""
        self.state = state
        self._on_change()
