"""Several things side by side until the first of them ends, and threads that nobody waits for.

Not a TaskGroup: in Python 3.11 a group whose child fails in the moment it is cancelled swallows
the cancellation, and the loop around it would go on for ever.
"""

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_IN_THREAD: Final = "in-thread"


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


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run what reads or writes files: it may take for ever where a file system hangs.

    Unlike a thread of asyncio.to_thread, this one neither takes the place of others nor keeps the
    process from ending.

    Raises:
        OSError: there can be no more threads.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: object) -> None:
        if not outcome.done():  # the caller may have given up
            set_outcome(value)

    def run() -> None:
        try:
            settled: tuple[Callable[[Any], None], object] = (
                outcome.set_result,
                work(*args, **kwargs),
            )
        except BaseException as error:
            settled = outcome.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *settled)

    try:
        threading.Thread(target=run, name=_IN_THREAD, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    return await outcome


def has_threads() -> bool:
    """Whether some of what was begun `in_thread` has not ended."""
    return any(thread.name == _IN_THREAD for thread in threading.enumerate())
