"""One engine's process: started in a process group of its own, watched by pidfd, found again later.

The folder of an engine outlives the agent that made it; `process.json` in it says which process it
was: its pid, when the kernel started it, counted from the boot of the machine, and which boot that
was. So no other process is taken for it, wherever somebody sets the clock.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planaria.local.processes import (
    ProcessIdentity,
    boot_id,
    identify,
    is_alive,
    open_process,
    send_signal,
)
from planaria_worker.agent.concurrency import in_thread
from planaria_worker.engine_config import EngineConfig

CONFIG_FILE = "config.json"
SOCKET_FILE = "engine.sock"
LOG_FILE = "engine.log"
PROCESS_FILE = "process.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcess:
    """The process of an engine.

    Attributes:
        exit_code: waits for the exit code of a process that has just ended, if this agent started
            it; nobody else can know it.
    """

    identity: ProcessIdentity
    exit_code: Callable[[], int | None] = lambda: None

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def is_alive(self) -> bool:
        return is_alive(self.identity)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        send_signal(self.identity, number)

    async def wait(self) -> int | None:
        """Wait until the process has ended; its exit code, negative for a signal, if known."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        descriptor = open_process(self.identity)
        if descriptor is not None:
            try:
                loop.add_reader(descriptor, ended.set)
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return await in_thread(self.exit_code)


def record_process(folder: Path, pid: int, exit_code: Callable[[], int | None]) -> EngineProcess:
    """Write down which process the engine of a folder is, for an agent to come.

    Raises:
        OSError: the folder cannot be written, or the process has ended already.
    """
    identity = identify(pid)
    if identity is None:
        raise ProcessLookupError(f"process {pid} ended at once")
    facts = {"pid": pid, "start_ticks": identity.start_ticks, "boot_id": boot_id()}
    (folder / PROCESS_FILE).write_text(json.dumps(facts), encoding="utf-8")
    return EngineProcess(identity=identity, exit_code=exit_code)


Launch = Callable[[Path, EngineConfig], EngineProcess]
"""Starts the engine whose configuration is in a folder; may block: `Launcher.launch`."""


def find_engine(folder: Path) -> EngineProcess | None:
    """Return the process recorded in a folder, if it is still the same and alive."""
    try:
        facts = json.loads((folder / PROCESS_FILE).read_text(encoding="utf-8"))
        identity = ProcessIdentity(pid=int(facts["pid"]), start_ticks=int(facts["start_ticks"]))
        is_of_this_boot = facts["boot_id"] == boot_id()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    process = EngineProcess(identity=identity)
    return process if is_of_this_boot and process.is_alive else None
