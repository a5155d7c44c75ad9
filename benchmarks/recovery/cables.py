"""How soon a machine is lost whose cable is pulled: nothing is closed, and nobody is told.

Nodes are network namespaces, and need root and `ip` (iproute2).
"""

import random
import time
from pathlib import Path
from typing import Any

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import job, write_text
from benchmarks.common.network import Network
from benchmarks.common.results import summary

NUM_NODES = 4
MANY_STEPS = 1_000_000
_TIMEOUT_SECONDS = 60.0


def measure_cables(
    folder: Path, *, num_pulls: int, deadline_seconds: float, seed: int
) -> dict[str, Any]:
    """Pull the cable of a random node of a job, again and again; seconds until it is lost."""
    nodes = [f"node-{index}" for index in range(NUM_NODES)]
    rng, seconds = random.Random(seed), []
    folder.mkdir(parents=True, exist_ok=True)
    text = write_text(folder / "text.txt")
    with (
        Network(nodes) as network,
        Cluster(
            folder / "cluster", network=network, node_deadline_seconds=deadline_seconds
        ) as cluster,
    ):
        cluster.start(NUM_NODES)
        job_id = cluster.client.submit(job("paced", text, steps=MANY_STEPS, seed=seed)).id
        for number in range(num_pulls):
            _wait_until_whole(cluster, job_id)
            time.sleep(rng.uniform(0.0, 1.0))
            seconds.append(_pull(cluster, network, rng.choice(nodes)))
            print(f"cable {number + 1} of {num_pulls}: {seconds[-1]:.3f} s", flush=True)
        cluster.client.cancel_job(job_id)
    return {
        "seed": seed,
        "deadline_seconds": deadline_seconds,
        "seconds": seconds,
        "summary": summary(seconds),
    }


def _pull(cluster: Cluster, network: Network, node_id: str) -> float:
    before = _losses(cluster, node_id)
    pulled = time.time()
    network.cut(node_id)
    cluster.wait_for(
        f"{node_id} to be lost",
        lambda: len(_losses(cluster, node_id)) > len(before),
        timeout=_TIMEOUT_SECONDS,
    )
    network.heal(node_id)
    return _losses(cluster, node_id)[-1] - pulled


def _losses(cluster: Cluster, node_id: str) -> list[float]:
    events = cluster.client.events()
    return [e.time.timestamp() for e in events if e.type == "node_lost" and e.node_id == node_id]


def _wait_until_whole(cluster: Cluster, job_id: str) -> None:
    def is_whole() -> bool:
        found = cluster.client.get_job(job_id)
        plan = cluster.client.job_plan(job_id).plan if found.state == "RUNNING" else None
        placed = {s.node_id for p in plan.pipelines for s in p.stages} if plan else set()
        return len(placed) == NUM_NODES

    cluster.wait_for("all nodes to train", is_whole)
    step = cluster.client.get_job(job_id).step
    cluster.wait_for_step(job_id, step + 2)
