"""The frame of every service's `__main__`: settings, logs, readiness, and errors as one line."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from planaria_common.errors import ErrorReason, InvalidArgumentError, PlanariaError
from planaria_common.logging import configure_logging
from planaria_common.settings import ServiceSettings, load_settings

READY_WORD = "ready"
REPLACED_STATUS = 3
"""Exit status of a coordinator that another has replaced: started again, it would replace that."""

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def run_service(
    *,
    part: str,
    settings_type: type[SettingsT],
    serve: Callable[[SettingsT], Coroutine[Any, Any, None]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run `planaria-<part>` until it ends, and return its exit status.

    Args:
        part: planner, coordinator or worker.
        settings_type: read from the command line and the environment.
        serve: runs the service until a stop signal; raises PlanariaError when it cannot.
        arguments: the command line; that of the process when not given.
    """
    program = f"planaria-{part}"
    try:
        settings = load_settings(
            settings_type,
            program=program,
            arguments=sys.argv[1:] if arguments is None else arguments,
        )
        configure_logging(component=part, level=settings.log_level, log_format=settings.log_format)
        asyncio.run(serve(settings))
    except PlanariaError as error:
        sys.stderr.write(f"error: {error}\n")
        if error.reason is ErrorReason.NOT_LEADER:
            return REPLACED_STATUS
        return 2 if isinstance(error, InvalidArgumentError) else 1
    return 0


def announce_ready(**facts: str | int) -> None:
    """Write the one line of standard output that tells a supervisor where the service is."""
    sys.stdout.write(f"{READY_WORD} {json.dumps(facts)}\n")
    sys.stdout.flush()


async def stop_signal() -> signal.Signals:
    """Wait for SIGTERM or SIGINT and return which came."""
    with stop_signals() as arrived:
        return await arrived.get()


@contextmanager
def stop_signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """Queue every SIGTERM and SIGINT that comes inside the block."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived.put_nowait, number)
    try:
        yield arrived
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
