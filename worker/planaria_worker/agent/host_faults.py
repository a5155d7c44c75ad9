"""Faults of the machine that pass: no space, no descriptors, no memory, no processes."""

import errno
from typing import Final

_PASSING: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
    }
)


def is_host_fault(error: BaseException) -> bool:
    """Return whether an error comes from what the machine lacks at the moment."""
    while True:
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        before = error.__cause__ or error.__context__
        if before is None:
            return False
        error = before
