"""Which threads come first where all cores are busy: those for which others wait, and do little.

A recovery passes through a dozen threads: who sees that a peer is gone, agents, the coordinator,
who fences, who builds groups. Each has a few milliseconds to do. On cores that are busy with
training each would wait for its turn behind threads that compute, and all that stand wait for it.

To come first takes permission: root's, CAP_SYS_NICE or a limit (`LimitNICE=` in a unit of systemd).
Without it everything has the same priority, and works alike.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

AHEAD: Final = 5
"""By how much the niceness of those who come first is lower."""
_HIGHEST: Final = -20

_ordinary = os.getpriority(os.PRIO_PROCESS, 0)
"""Niceness that this process was started with, or the one that it is forked from."""


def come_first() -> None:
    """Raise the priority of this thread, and of those it starts from now on, where permitted."""
    with contextlib.suppress(PermissionError):
        _set(max(_ordinary - AHEAD, _HIGHEST))


def stand_back() -> None:
    """Give this thread, and those it starts from now on, the priority of training."""
    _set(_ordinary)


@contextlib.contextmanager
def standing_back() -> Iterator[None]:
    """For a while: threads and processes that are started meanwhile stay there."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    stand_back()
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            _set(before)


def _set(niceness: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, niceness)  # of this thread alone, in Linux
