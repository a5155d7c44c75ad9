"""An agent's life: its parts put together, until a stop signal; its engines end with it."""

import asyncio
import os
import signal
from typing import Final

from planaria_common.logging import get_logger
from planaria_common.service import announce_ready, stop_signals
from planaria_common.supervised import supervised
from planaria_worker.agent.agent import LEAVE_SECONDS, Agent
from planaria_worker.agent.concurrency import until_first_ends
from planaria_worker.agent.engine_process import Launch
from planaria_worker.agent.engines import STOP_SECONDS
from planaria_worker.agent.machine import Machine
from planaria_worker.agent.outbox import Outbox
from planaria_worker.agent.session import Session
from planaria_worker.agent.settings import WorkerSettings

MAX_END_SECONDS: Final = STOP_SECONDS + LEAVE_SECONDS + STOP_SECONDS
"""After the grace period: engines that no signal ends are waited for in `leave` and at the end."""

log = get_logger("agent")


async def live(
    settings: WorkerSettings, *, token: str | None, machine: Machine, launch: Launch
) -> None:
    """Serve the coordinator until a stop signal; then leave it.

    SIGTERM says that the machine goes away: the node is drained first, for the grace period or
    until the next signal. SIGINT ends the agent and its engines at once.

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
            session.run(),
            supervised("keep-leases", agent.keep_leases),
            supervised("end-silent-engines", agent.end_silent_engines),
            _until_stopped(agent, settings.drain_grace_seconds),
        )
    finally:
        await agent.engines.stop_all()


async def _until_stopped(agent: Agent, grace_seconds: float) -> None:
    with stop_signals() as arrived:
        if await arrived.get() is signal.SIGTERM:
            log.info("draining", grace_seconds=grace_seconds)
            await until_first_ends(agent.drain(), _received(arrived), asyncio.sleep(grace_seconds))
        await agent.leave()


async def _received(arrived: asyncio.Queue[signal.Signals]) -> None:
    await arrived.get()
