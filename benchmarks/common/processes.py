"""One process of a cluster: how it is started, told to end, and known to be ready."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

START_TIMEOUT_SECONDS = 60.0


class Process(Protocol):
    """What a cluster needs of `subprocess.Popen`."""

    pid: int
    stdout: IO[str] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


def start_process(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    prefix: Sequence[str] = (),
) -> Process:
    """Run a module in a fresh Python; its standard output is a pipe."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            process_group=0,
        )


@dataclass(kw_only=True)
class Part:
    """One process, started with a log of its own."""

    name: str
    process: Process
    log: Path

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def wait_ready(self) -> None:
        """Wait for the line `ready {...}` of a service."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                line = self.process.stdout.readline()
                if not line:
                    break
                if line.startswith("ready "):
                    return
        raise AssertionError(f"{self.name} did not start:\n{self.log.read_text()[-4000:]}")
