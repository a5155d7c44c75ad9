"""Waking up those who wait for something to change."""

import asyncio


class Changes:
    """A counter that others can wait for; nobody who looks at it first misses a change."""

    def __init__(self) -> None:
        self._count = 0
        self._next = asyncio.Event()

    @property
    def count(self) -> int:
        """How often something has changed."""
        return self._count

    def notify(self) -> None:
        """Wake all who wait."""
        self._count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def beyond(self, count: int) -> int:
        """Wait until there were more than `count` changes, and return how many."""
        while self._count <= count:
            await self._next.wait()
        return self._count
