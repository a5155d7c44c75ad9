"""Starts what stands for six nodes, kills one, and reads when steps were committed."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks import REPOSITORY
from benchmarks.common.jobs import (
    MICROBATCH_SIZE,
    NUM_MICROBATCHES,
    PACED_ARGUMENTS,
    SEQUENCE_LENGTH,
)
from benchmarks.recovery.peers.pipeline import Settings

TIMEOUT_SECONDS = 180.0
POLL_SECONDS = 0.1
NUM_STEADY_STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A committed step, by the newest generation of workers that committed it."""

    step: int
    at: float
    detail: dict[str, Any]


class Nodes:
    """Processes in sessions of their own, one for each node; ends them all when it is left."""

    def __init__(self, folder: Path, seed: int, environment: Mapping[str, str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        settings = {
            "model": PACED_ARGUMENTS,
            "num_microbatches": NUM_MICROBATCHES,
            "microbatch_size": MICROBATCH_SIZE,
            "sequence_length": SEQUENCE_LENGTH,
            "seed": seed,
            "folder": str(folder),
        }
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
            Settings.VARIABLE: json.dumps(settings),
            **environment,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start(self, name: str, command: Sequence[str], **environment: str) -> None:
        """Start a process; what it prints goes to a log in the folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # as ours: Linux may divide the processor among sessions
            )

    def kill(self, name: str) -> float:
        """Kill -9 a process with all its children; return when."""
        victim = self._processes.pop(name)
        pids = [victim.pid] if victim.poll() is None else []
        if pids:
            pids += [child.pid for child in psutil.Process(pids[0]).children(recursive=True)]
        at = time.perf_counter()
        for pid in reversed(pids):
            os.kill(pid, signal.SIGKILL)
        victim.wait()
        return at

    def commits(self) -> list[Commit]:
        """Return what was committed so far, in order of time."""
        lines = (
            json.loads(line)
            for path in self.folder.glob("*.jsonl")
            for line in path.read_text().splitlines()
        )
        found = [Commit(step=x.pop("step"), at=x.pop("at"), detail=x) for x in lines]
        return sorted(found, key=lambda commit: commit.at)

    def wait_for(self, what: str, condition: Callable[[list[Commit]], bool]) -> list[Commit]:
        """Wait until the commits are as wanted, and return them."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition(commits := self.commits()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}; logs in {self.folder}")
            time.sleep(POLL_SECONDS)
        return commits


def wait_until_steady(nodes: Nodes, since: float, **detail: object) -> float:
    """Wait for some commits with these details in a row; return the median length of a step."""

    def is_steady(commits: list[Commit]) -> bool:
        newest = [commit for commit in commits if commit.at > since][-NUM_STEADY_STEPS - 1 :]
        return len(newest) > NUM_STEADY_STEPS and all(
            commit.detail[key] == value for commit in newest for key, value in detail.items()
        )

    times = [commit.at for commit in nodes.wait_for(f"steps with {detail}", is_steady)]
    newest = times[-NUM_STEADY_STEPS - 1 :]
    return median(b - a for a, b in pairwise(newest))


def kill_at_random(
    nodes: Nodes, rng: random.Random, names: Sequence[str], step_seconds: float
) -> tuple[float, float]:
    """Kill a node at a random phase of a step.

    Returns:
        When, and how long the step that was hit took from the commit before it to its own.
    """
    victim = rng.choice(names)
    time.sleep(rng.uniform(0, 2 * step_seconds))
    at = nodes.kill(victim)
    commits = nodes.wait_for("a commit after the kill", lambda found: found[-1].at > at)
    times: dict[int, float] = {}
    for commit in commits:  # a step is committed when all have committed it who will
        times[commit.step] = max(times.get(commit.step, 0.0), commit.at)
    before = max(time for time in times.values() if time <= at)
    after = min(time for time in times.values() if time > at)
    return at, after - before
