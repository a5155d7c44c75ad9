"""One engine's process: started in a process group of its own, watched by pidfd, found again later.

The folder of an engine outlives the agent that made it; `process.json` in it says which process it
was, with its start time, so that a pid that was given to another process is not mistaken.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from planaria_worker.engine_config import EngineConfig

CONFIG_FILE = "config.json"
SOCKET_FILE = "engine.sock"
LOG_FILE = "engine.log"
PROCESS_FILE = "process.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcess:
    """A process known by its pid and its start time.

    Attributes:
        exit_code: waits for the exit code of a process that has just ended, if this agent started
            it; nobody else can know it.
    """

    pid: int
    create_time: float
    exit_code: Callable[[], int | None] = lambda: None

    @property
    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.create_time and (
                process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.NoSuchProcess:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.is_alive:
            os.kill(self.pid, number)

    async def wait(self) -> int | None:
        """Wait until the process has ended; its exit code, negative for a signal, if known."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return await asyncio.to_thread(self.exit_code)
        try:
            if self.is_alive:
                loop.add_reader(descriptor, ended.set)
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return await asyncio.to_thread(self.exit_code)


def record_process(folder: Path, pid: int, exit_code: Callable[[], int | None]) -> EngineProcess:
    """Write down which process the engine of a folder is, for an agent to come.

    Raises:
        OSError: the folder cannot be written, or the process has ended already.
    """
    try:
        create_time = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        raise ProcessLookupError(f"process {pid} ended at once") from None
    facts = {"pid": pid, "create_time": create_time}
    (folder / PROCESS_FILE).write_text(json.dumps(facts), encoding="utf-8")
    return EngineProcess(pid=pid, create_time=create_time, exit_code=exit_code)


Launch = Callable[[Path, EngineConfig], EngineProcess]
"""Starts the engine whose configuration is in a folder; may block: `Launcher.launch`."""


def find_engine(folder: Path) -> EngineProcess | None:
    """Return the process recorded in a folder, if it is still the same and alive."""
    try:
        facts = json.loads((folder / PROCESS_FILE).read_text(encoding="utf-8"))
        process = EngineProcess(pid=int(facts["pid"]), create_time=float(facts["create_time"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return process if process.is_alive else None
