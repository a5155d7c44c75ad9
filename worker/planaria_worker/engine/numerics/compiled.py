"""How loops are compiled that Python would be too slow, or not allowed, to run."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(signature: str | None = None) -> Callable[[F], F]:
    """Machine code, kept on disk; it lets other threads (heartbeats) run meanwhile.

    Args:
        signature: compile for these types when the module is imported; None: when first called.
    """

    def compile_(function: F) -> F:
        made: F = njit(signature, cache=True, nogil=True, error_model="numpy")(function)
        return made

    return compile_
