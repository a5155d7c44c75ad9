"""`planaria-planner`: serve plans until a stop signal."""

import asyncio
import os
import sys

from planaria_common.credentials import read_token
from planaria_common.service import announce_ready, run_service, stop_signal
from planaria_planner.service.server import planner_server
from planaria_planner.service.settings import PlannerSettings
from planaria_planner.warm_up import warm_up


async def serve(settings: PlannerSettings) -> None:
    """Run the server; says that it is ready only when its first answer will be a quick one."""
    token = read_token(settings.token_file) if settings.token_file else None
    server = planner_server(host=settings.host, port=settings.port, token=token)
    stopped = asyncio.ensure_future(stop_signal())
    await asyncio.to_thread(warm_up)
    await server.start()
    announce_ready(grpc_address=server.address, pid=os.getpid())
    await stopped
    await server.stop(grace_seconds=settings.grace_seconds)


def main() -> int:
    """Run the planner and return its exit status."""
    return run_service(part="planner", settings_type=PlannerSettings, serve=serve)


if __name__ == "__main__":
    sys.exit(main())
