"""What repositories work with: functions of a synchronous connection, in one transaction."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")


class Transaction(Protocol):
    """One transaction.

    Whatever is to be done is a function of a connection, so that a database that is reached
    through a thread is reached once for many statements. Functions must not await.
    """

    def write(self, function: Callable[[Connection], object]) -> None:
        """Have a function run with the next `run` or with `commit`, behind those before it.

        What it raises is raised there; without either it never runs.
        """
        ...

    async def run(self, function: Callable[[Connection], T]) -> T:
        """Run the writes so far, then a function that only reads, and return what it returns."""
        ...

    async def commit(self) -> None:
        """Run the writes so far and make them visible and durable, or leave nothing of them."""
        ...


Check = Callable[[Connection], object]
"""Raises where a transaction must not write."""


class Writes:
    """Writes whose results nobody needs, in their order; a check comes before the first."""

    def __init__(self, check: Check | None = None) -> None:
        self._check = check
        self._queued: list[Callable[[Connection], object]] = []

    def __bool__(self) -> bool:
        return bool(self._queued)

    def add(self, function: Callable[[Connection], object]) -> None:
        if self._check is not None:
            self._queued.append(self._check)
            self._check = None
        self._queued.append(function)

    def flush(self, connection: Connection) -> None:
        """Run each once."""
        queued, self._queued = self._queued, []
        for function in queued:
            function(connection)
