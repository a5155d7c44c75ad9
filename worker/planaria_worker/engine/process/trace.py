"""What an engine did and when, written as it happens; for benchmarks and tests, else inert.

Each engine appends to `<engine id>.jsonl` in the folder that PLANARIA_ENGINE_TRACE names (slashes
of the id are dots). A line is a JSON object: a span `{"span": "forward", "start": 1.25, "end":
1.5, "step": 3, "microbatch": 2}` of the training thread, whose spans leave no gap within a step, or
an event `{"event": "commit", "at": 1.5, ...}`. Times are seconds of CLOCK_MONOTONIC, which all
processes of a machine share. Each line is one write into the page cache, so what an engine did
before kill -9 is there, and nothing waits for a disk.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

ENVIRONMENT_VARIABLE = "PLANARIA_ENGINE_TRACE"


class Trace:
    """Where lines go; may be written to from any thread."""

    def __init__(self, path: Path | None = None) -> None:
        self._file: int | None = None
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], engine_id: str) -> Self:
        """Reads the variable; unset or empty, nothing is ever written.

        Raises:
            OSError: the folder cannot be written to.
        """
        folder = environment.get(ENVIRONMENT_VARIABLE, "")
        return cls(Path(folder) / f"{engine_id.replace('/', '.')}.jsonl" if folder else None)

    def span(self, kind: str, start: float, end: float, **detail: int | None) -> None:
        """Writes what a stretch of time went to."""
        if self._file is not None:
            self._write({"span": kind, "start": start, "end": end, **detail})

    def event(self, name: str, **detail: object) -> None:
        """Writes that something happened, now."""
        if self._file is not None:
            self._write({"event": name, "at": time.perf_counter(), **detail})

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is not None:
            os.write(self._file, json.dumps(line).encode() + b"\n")
