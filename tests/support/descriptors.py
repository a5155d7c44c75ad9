"""Processes that may open no more files for a while."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """Let a process keep the files that it has open and open no others inside the block."""
    used = max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()) + 1
    free = _free_below(pid, used)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # A new descriptor takes the lowest free number, which must not be below the limit.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def _free_below(pid: int, end: int) -> int:
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(end + 1) if number not in taken)
