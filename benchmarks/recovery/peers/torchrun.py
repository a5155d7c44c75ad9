"""torchrun with DCP on six nodes that are killed: how much longer the step that was hit takes.

As fast as it can be made: a store that no node hosts (else losing the first node ends the job),
short heartbeats and last call, workers looked at every 50 ms, a checkpoint in memory after every
step, and the store not shared with the workers (else it never recovers).
"""

import random
import sys
from pathlib import Path
from typing import Any

from benchmarks.common.ports import free_port
from benchmarks.common.results import summary
from benchmarks.recovery.peers.nodes import Nodes, kill_at_random, wait_until_steady

NUM_NODES = 6
MIN_NODES = 5
_STORE = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False,
                 multi_tenant=True, timeout=timedelta(seconds=60))
time.sleep(1e6)
"""
_RENDEZVOUS = {
    "is_host": 0,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 2,
    "last_call_timeout": 1,
}


def measure_torchrun(folder: Path, *, num_kills: int, seed: int) -> dict[str, Any]:
    """Kill a node of a job that was started for it, so many times, and return all figures.

    Args:
        folder: for logs and checkpoints, better in memory; must not exist.
        num_kills: how many.
        seed: of moments and victims.
    """
    rng = random.Random(seed)
    excesses = []
    for number in range(num_kills):
        excesses.append(_excess_seconds(folder / str(number), rng, seed))
        print(f"torchrun: kill {number + 1} of {num_kills}: {excesses[-1]:.2f} s", flush=True)
    return {"seed": seed, "excess_seconds": excesses, "summary": summary(excesses)}


def _excess_seconds(folder: Path, rng: random.Random, seed: int) -> float:
    port, names = free_port(), [f"node-{number}" for number in range(NUM_NODES)]
    with Nodes(folder, seed, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) as nodes:
        nodes.start("store", [sys.executable, "-c", _STORE, str(port)])
        for name in names:
            nodes.start(name, _command(port))
        step_seconds = wait_until_steady(nodes, 0.0, num_pipelines=NUM_NODES // 2)
        at, hit_seconds = kill_at_random(nodes, rng, names, step_seconds)
        return hit_seconds - wait_until_steady(nodes, at, num_pipelines=MIN_NODES // 2)


def _command(port: int) -> list[str]:
    settings = ",".join(f"{name}={value}" for name, value in _RENDEZVOUS.items())
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={MIN_NODES}:{NUM_NODES}", "--nproc-per-node=1", "--max-restarts=1000"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=benchmark"),
        *(f"--rdzv-conf={settings}", "--local-addr=127.0.0.1", "--monitor-interval=0.05"),
        *("--module", "benchmarks.recovery.peers.torchrun_worker"),
    ]
