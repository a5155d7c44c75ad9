"""One engine's process: started in a session of its own, watched by pidfd, found again later.

The folder of an engine outlives the agent that made it; `process.json` in it says which process it
was, with its start time, so that a pid that was given to another process is not mistaken.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

CONFIG_FILE = "config.json"
SOCKET_FILE = "engine.sock"
LOG_FILE = "engine.log"
PROCESS_FILE = "process.json"

# One thread each, decided before any numerical library is loaded: a reproducible job's sums depend
# on it, and ranks that share a machine would only get into each other's way.
_THREAD_LIMITS = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ),
    "1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcess:
    """A process known by its pid and its start time.

    Attributes:
        child: set when this agent started the process, which alone lets it learn the exit code.
    """

    pid: int
    create_time: float
    child: subprocess.Popen[bytes] | None = None

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
            return self._exit_code()
        try:
            if self.is_alive:
                loop.add_reader(descriptor, ended.set)
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._exit_code()

    def _exit_code(self) -> int | None:
        return self.child.wait() if self.child is not None else None


def start_engine(
    folder: Path,
    environment: Mapping[str, str],
    command: Sequence[str] = (sys.executable, "-m", "planaria_worker.engine"),
) -> EngineProcess:
    """Start the engine whose configuration is in `folder` and record its process there.

    Raises:
        OSError: no process could be made, or the folder cannot be written.
    """
    with (folder / LOG_FILE).open("ab") as log:
        child = subprocess.Popen(
            [*command, "--config", str(folder / CONFIG_FILE)],
            cwd=folder,
            env={**environment, **_THREAD_LIMITS},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    create_time = psutil.Process(child.pid).create_time()
    facts = {"pid": child.pid, "create_time": create_time}
    (folder / PROCESS_FILE).write_text(json.dumps(facts), encoding="utf-8")
    return EngineProcess(pid=child.pid, create_time=create_time, child=child)


Launch = Callable[[Path, Mapping[str, str]], EngineProcess]
"""Starts the engine whose configuration is in a folder, with an environment: `start_engine`."""


def find_engine(folder: Path) -> EngineProcess | None:
    """Return the process recorded in a folder, if it is still the same and alive."""
    try:
        facts = json.loads((folder / PROCESS_FILE).read_text(encoding="utf-8"))
        process = EngineProcess(pid=int(facts["pid"]), create_time=float(facts["create_time"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return process if process.is_alive else None
