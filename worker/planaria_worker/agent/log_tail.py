"""Reads what has been added to a log file, whole lines only."""

import threading
from pathlib import Path

MAX_LINES = 500
MAX_LINE_CHARACTERS = 4_000
_BLOCK_BYTES = 1 << 20


class LogTail:
    """Follows one file from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._reading = threading.Lock()

    def new_lines(self) -> list[str]:
        """Return the next lines, at most MAX_LINES; a line still being written comes later.

        None while another thread reads: it may hang in a file system.
        """
        if not self._reading.acquire(blocking=False):
            return []
        try:
            return self._read()
        finally:
            self._reading.release()

    def _read(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                block = file.read(_BLOCK_BYTES)
        except OSError:  # not there yet, or it cannot be opened: with one of the next heartbeats
            return []
        complete, end, _ = block.rpartition(b"\n")
        if not end:
            complete = block if len(block) == _BLOCK_BYTES else b""
        lines = complete.split(b"\n")[:MAX_LINES] if complete else []
        self._offset += sum(len(line) + 1 for line in lines)
        return [line.decode(errors="replace")[:MAX_LINE_CHARACTERS] for line in lines]


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file, for a report; none when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 64 * 1024))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line[:MAX_LINE_CHARACTERS] for line in lines[-count:]]
