"""Tasks and threads that must not end: what raises is logged, and they begin again."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

from planaria_common.logging import get_logger

PAUSE_SECONDS: Final = 0.5

log = get_logger("supervised")


async def supervised(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Do work that goes on for as long as the process lives; return when it does."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("task_failed", task=name)
        await sleep(PAUSE_SECONDS)


def start_supervised_thread(
    name: str, work: Callable[[], None], *, sleep: Callable[[float], None] = time.sleep
) -> threading.Thread:
    """Start a daemon thread that does such work.

    Raises:
        RuntimeError: there can be no more threads.
    """

    def run() -> None:
        while True:
            try:
                work()
                return
            except Exception:
                log.exception("thread_failed", thread=name)
            sleep(PAUSE_SECONDS)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
