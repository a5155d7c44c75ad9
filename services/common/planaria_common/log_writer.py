"""Writes log lines in a thread: whoever logs neither waits for a disk nor fails with it.

A line that cannot be written, because the disk is full or hangs, is dropped and counted; as soon as
there is room again a line says how many were.
"""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TextIO

MAX_WAITING_LINES: Final = 10_000
_EXIT_SECONDS: Final = 1.0


class LogWriter:
    """A text stream, as far as loggers use one.

    Args:
        stream: where lines go.
        tell_of_dropped: logs how many lines are missing.
    """

    def __init__(self, stream: TextIO, tell_of_dropped: Callable[[int], None]) -> None:
        self._stream = stream
        self._tell_of_dropped = tell_of_dropped
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.drain, _EXIT_SECONDS)

    def _forget(self) -> None:
        """What waits is written by the process that logged it; its thread is not in a fork."""
        self._lines: SimpleQueue[str | threading.Event] = SimpleQueue()
        self._starting = threading.Lock()
        self._has_thread = False
        self._num_dropped = 0

    def write(self, text: str) -> None:
        """Have a line written; never blocks and never fails."""
        if not self._has_thread:
            self._start()
        if self._has_thread and self._lines.qsize() < MAX_WAITING_LINES:
            self._lines.put(text)
        else:
            self._num_dropped += 1

    def flush(self) -> None:
        """Nothing: every line is written at once."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def drain(self, timeout_seconds: float) -> None:
        """Wait until what was logged so far has been written, or until it takes too long."""
        if self._has_thread:
            written = threading.Event()
            self._lines.put(written)
            written.wait(timeout_seconds)

    def _start(self) -> None:
        with self._starting:
            if self._has_thread or sys.is_finalizing():
                return
            # Too many threads: the next line tries again.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._run, name="log-writer", daemon=True).start()
                self._has_thread = True

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                self._stream.write(line)
                self._stream.flush()
            except Exception:  # a full disk, a closed pipe: there is no place to say so
                self._num_dropped += 1
                continue
            if self._num_dropped:
                num_dropped, self._num_dropped = self._num_dropped, 0
                self._tell_of_dropped(num_dropped)
