"""How inner loops are compiled: numba, cached on disk, with types kept for mypy."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop over arrays to machine code at its first call; later processes load it."""
    return cast(Callable[P, R], numba.njit(cache=True)(function))
