"""How inner loops are compiled: numba, cached on disk, with types kept for mypy."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop over arrays at its first call; later processes load the machine code.

    It runs without the interpreter lock, so a server answers its health checks meanwhile.
    """
    try:
        return cast(Callable[P, R], numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's nor the user's cache folder can be written
        return cast(Callable[P, R], numba.njit(nogil=True)(function))
