"""How far a long computation has come, for its caller."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from planaria_planner.templates.cost_tables import Int64Array
from planaria_planner.templates.template_search import LAYERS


class Progress:
    """Counts steps done; the compiled loop that counts runs in one thread, readers in others."""

    def __init__(self) -> None:
        self._done: Int64Array = np.zeros(2, dtype=np.int64)
        self._total = 0
        self._most = 0.0

    @property
    def fraction(self) -> float:
        """From 0 to 1; it never falls, also where there is more to be done than was thought."""
        if self._total:
            self._most = max(self._most, min(float(self._done[LAYERS]) / self._total, 1.0))
        return self._most

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow what this thread computes."""
        token = _followed_by.set(self)
        try:
            yield
        finally:
            _followed_by.reset(token)

    def expect(self, num_steps: int) -> Int64Array:
        """Say how many steps follow; return where to count them."""
        self._done[:], self._total = 0, num_steps
        return self._done


_followed_by: ContextVar[Progress | None] = ContextVar("progress", default=None)


def step_counter(num_steps: int) -> Int64Array:
    """Return where a loop of so many steps counts those that it has done."""
    return (_followed_by.get() or Progress()).expect(num_steps)
