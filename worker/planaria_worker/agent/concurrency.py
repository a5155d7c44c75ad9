"""Run several things side by side until the first of them ends.

Not a TaskGroup: in Python 3.11 a group whose child fails in the moment it is cancelled swallows
the cancellation, and the loop around it would go on for ever.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def until_first_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Run all; when one returns or raises, cancel the others, and return or raise the same."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
