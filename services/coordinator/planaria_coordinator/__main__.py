"""`planaria-coordinator`: serve agents, schedulers and users until a stop signal."""

import asyncio
import logging
import os
import sys

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.priority import come_first
from planaria_common.service import announce_ready, run_service, stop_signal
from planaria_coordinator.bootstrap import run_coordinator
from planaria_coordinator.settings import CoordinatorSettings


async def serve(settings: CoordinatorSettings) -> None:
    """Run the coordinator; a second stop signal is not needed, the first one drains in seconds.

    Raises:
        PlanariaError: it cannot start, or another one has replaced it.
    """
    for chatty in ("alembic", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    stopped = asyncio.ensure_future(stop_signal())
    async with run_coordinator(settings) as endpoints:
        announce_ready(
            grpc_address=endpoints.grpc_address, http_url=endpoints.http_url, pid=os.getpid()
        )
        replaced = asyncio.ensure_future(endpoints.was_replaced.wait())
        ended = asyncio.ensure_future(endpoints.until_http_ends())
        await asyncio.wait({stopped, replaced, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not stopped.done():
            raise PlanariaError(
                ErrorReason.INTERNAL, f"the HTTP server ended: {ended.exception() or 'by itself'}"
            )
    if not stopped.done():
        raise PlanariaError(
            ErrorReason.NOT_LEADER,
            "another coordinator has opened the database and serves from now on: this one ends",
        )


def main() -> int:
    """Run the coordinator and return its exit status."""
    come_first()
    return run_service(part="coordinator", settings_type=CoordinatorSettings, serve=serve)


if __name__ == "__main__":
    sys.exit(main())
