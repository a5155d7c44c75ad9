"""Processes that can write nothing to files for a while, as on a disk that is full or read-only."""

import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def without_writes(pids: Iterable[int]) -> Iterator[None]:
    """Let the kernel refuse every write of some processes to a file inside the block."""
    pids = tuple(pids)
    for pid in pids:
        _limit(pid, 0)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(psutil.NoSuchProcess):  # what it has started meanwhile has the limit, too
                for child in psutil.Process(pid).children(recursive=True):
                    _limit(child.pid, resource.RLIM_INFINITY)
            _limit(pid, resource.RLIM_INFINITY)


def _limit(pid: int, num_bytes: int) -> None:
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, hard))
