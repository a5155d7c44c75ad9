"""An agent's life: its parts put together, until a stop signal; its engines end with it."""

import os

from planaria_common.service import announce_ready, stop_signal
from planaria_worker.agent.agent import Agent
from planaria_worker.agent.concurrency import until_first_ends
from planaria_worker.agent.engine_process import Launch
from planaria_worker.agent.machine import Machine
from planaria_worker.agent.outbox import Outbox
from planaria_worker.agent.session import Session
from planaria_worker.agent.settings import WorkerSettings


async def live(
    settings: WorkerSettings, *, token: str | None, machine: Machine, launch: Launch
) -> None:
    """Serve the coordinator until a stop signal; then end the engines.

    Raises:
        PlanariaError: the coordinator refuses this agent.
    """
    outbox = Outbox()
    agent = Agent(settings=settings, machine=machine, outbox=outbox, pid=os.getpid(), launch=launch)
    agent.engines.adopt()
    session = Session(
        coordinators=settings.coordinator,
        token=token,
        node=agent,
        outbox=outbox,
        on_first_welcome=lambda: announce_ready(node_id=settings.node_id, pid=os.getpid()),
    )
    try:
        await until_first_ends(
            session.run(), agent.keep_leases(), agent.end_silent_engines(), _until_stopped()
        )
    finally:
        await agent.engines.stop_all()


async def _until_stopped() -> None:
    await stop_signal()
