"""What streams to watchers have in common: they end when the server stops, and may fill silence."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")


async def until_stopped(
    items: AsyncIterator[ItemT], *, stopping: asyncio.Event, silence_seconds: float | None = None
) -> AsyncIterator[ItemT | None]:
    """Yield the items until there are no more or `stopping` is set.

    Args:
        items: may wait for ever.
        stopping: set when the server stops.
        silence_seconds: after so long without an item, yield None; never when None.
    """
    stopped = asyncio.ensure_future(stopping.wait())
    upcoming: asyncio.Future[ItemT] | None = None
    try:
        while not stopping.is_set():
            if upcoming is None:
                upcoming = asyncio.ensure_future(anext(items))
            awaited: set[asyncio.Future[Any]] = {upcoming, stopped}
            await asyncio.wait(
                awaited, timeout=silence_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not upcoming.done():
                yield None
                continue
            try:
                item = upcoming.result()
            except StopAsyncIteration:
                return
            upcoming = None
            yield item
    finally:
        stopped.cancel()
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.wait({upcoming})
        if isinstance(items, AsyncGenerator):
            await items.aclose()
