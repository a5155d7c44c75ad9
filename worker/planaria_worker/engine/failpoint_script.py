"""Failpoints of many engines in one file, which a test lengthens while they run.

A line is a failpoint as a JSON object, with two fields more: `engine`, a pattern of engine ids
(`*/node-3/*`; left out: any), and `after`, the number of a line, from 0, that must have fired
before. A line fires once, in the first engine that it fits. The engine that fires a line leaves a
file next to the script, `<script>.<number>`: a JSON object, the engine and the time
(CLOCK_MONOTONIC).
"""

import contextlib
import fnmatch
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OWN_FIELDS = ("engine", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a script, as one engine sees it."""

    script: Path
    number: int
    engine_id: str
    after: int | None
    entry: dict[str, Any]
    """The failpoint, without what is the script's own."""

    def is_due(self) -> bool:
        """Whether it waits for nothing."""
        return self.after is None or mark(self.script, self.after).exists()

    def fire(self, at: str, step: int | None, microbatch: int | None) -> bool:
        """Takes the line for this engine; False: another one has it."""
        said = {
            "engine": self.engine_id,
            "seconds": time.monotonic(),
            "at": at,
            "step": step,
            "microbatch": microbatch,
        }
        # Complete as soon as it is there: a test that waits for it reads it at once.
        draft = mark(self.script, self.number).with_suffix(f".{threading.get_native_id()}")
        draft.write_text(json.dumps(said), encoding="utf-8")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, mark(self.script, self.number))
                return True
            return False
        finally:
            draft.unlink()


class Script:
    """The lines of a script that concern one engine."""

    def __init__(self, path: Path, engine_id: str) -> None:
        self._path = path
        self._engine_id = engine_id
        self._num_bytes = 0
        self._num_lines = 0

    def new_lines(self) -> Iterator[Line]:
        """Yields those that were added since the last time; not safe from several threads.

        Raises:
            OSError: there is no such file.
        """
        if self._path.stat().st_size <= self._num_bytes:
            return
        with self._path.open("rb") as file:
            file.seek(self._num_bytes)
            for text in file:
                if not text.endswith(b"\n"):
                    return  # the rest is still being written
                entry = json.loads(text)
                line = Line(
                    script=self._path,
                    number=self._num_lines,
                    engine_id=self._engine_id,
                    after=entry.get("after"),
                    entry={k: v for k, v in entry.items() if k not in _OWN_FIELDS},
                )
                self._num_bytes += len(text)
                self._num_lines += 1
                if fnmatch.fnmatchcase(self._engine_id, entry.get("engine", "*")):
                    yield line


def mark(script: Path, number: int) -> Path:
    """Where it is written that a line has fired."""
    return script.with_name(f"{script.name}.{number}")
