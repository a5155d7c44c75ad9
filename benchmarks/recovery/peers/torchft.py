"""torchft on six nodes that are killed: how much longer the step that was hit takes.

Three replica groups, each a pipeline on two nodes, in an environment that this script makes: what
torchft needs is no concern of ours. Tuned: a group counts as dead half a second after its last
heartbeat (5 s by default), quorums are looked for every 20 ms (100 ms), an all-reduce ends after
2 s (60 s). What the lost group would have trained is not counted against torchft.
"""

import importlib.metadata
import random
import subprocess
import venv
from pathlib import Path
from typing import Any

from benchmarks.common.ports import free_port
from benchmarks.common.results import summary
from benchmarks.recovery.peers.nodes import Nodes, kill_at_random, wait_until_steady

VERSION = "0.2.0"
NUM_GROUPS = 3
GROUP_SIZE = 2
_LIGHTHOUSE = {
    "min_replicas": NUM_GROUPS - 1,
    "heartbeat_timeout_ms": 500,
    "join_timeout_ms": 1000,
    "quorum_tick_ms": 20,
}


def make_environment(folder: Path) -> Path:
    """Install torchft next to the torch that everything else is measured with.

    Returns:
        The environment's folder of programs.
    """
    programs = folder / "bin"
    if not (programs / "torchft_lighthouse").exists():
        venv.create(folder, with_pip=True)
        torch = f"torch=={importlib.metadata.version('torch')}"
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, torch, f"torchft=={VERSION}", "numpy"], check=True)
    return programs


def measure_torchft(
    folder: Path, environment: Path, *, num_kills: int, seed: int
) -> dict[str, Any]:
    """Kill a node of a job that was started for it, so many times, and return all figures.

    Args:
        folder: for logs; must not exist.
        environment: where torchft is installed, or will be.
        num_kills: how many.
        seed: of moments and victims.
    """
    rng, programs = random.Random(seed), make_environment(environment)
    excesses = []
    for number in range(num_kills):
        excesses.append(_excess_seconds(folder / str(number), programs, rng, seed))
        print(f"torchft: kill {number + 1} of {num_kills}: {excesses[-1]:.2f} s", flush=True)
    return {"seed": seed, "excess_seconds": excesses, "summary": summary(excesses)}


def _excess_seconds(folder: Path, programs: Path, rng: random.Random, seed: int) -> float:
    port = free_port()
    with Nodes(folder, seed, {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}) as nodes:
        options = [f"--{name}={value}" for name, value in _LIGHTHOUSE.items()]
        lighthouse = [str(programs / "torchft_lighthouse"), f"--bind=127.0.0.1:{port}", *options]
        nodes.start("lighthouse", lighthouse)
        names = [
            name for group in range(NUM_GROUPS) for name in _start_group(nodes, programs, group)
        ]
        step_seconds = wait_until_steady(nodes, 0.0, num_groups=NUM_GROUPS)
        at, hit_seconds = kill_at_random(nodes, rng, names, step_seconds)
        return hit_seconds - wait_until_steady(nodes, at, num_groups=NUM_GROUPS - 1)


def _start_group(nodes: Nodes, programs: Path, group: int) -> list[str]:
    """Start the ranks of a group; return their names."""
    names, port = [f"node-{group}-{stage}" for stage in range(GROUP_SIZE)], free_port()
    for stage, name in enumerate(names):
        nodes.start(
            name,
            [str(programs / "python"), "-m", "benchmarks.recovery.peers.torchft_worker"],
            RANK=str(stage),
            WORLD_SIZE=str(GROUP_SIZE),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            REPLICA_GROUP_ID=str(group),
            NUM_REPLICA_GROUPS=str(NUM_GROUPS),
        )
    return names
