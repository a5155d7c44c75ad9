"""Whether anybody is taken for lost though nothing ails the nodes but load.

Four busy loops for every core take the processors from training, and random nodes are stopped for
less than their deadline. Nodes are network namespaces, and need root and `ip` (iproute2).
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import job, write_text
from benchmarks.common.network import Network
from benchmarks.common.results import summary
from benchmarks.recovery.cables import MANY_STEPS, NUM_NODES

LOOPS_OF_A_CORE = 4
LOSSES = ("node_lost", "engine_lost", "node_left_out")
_BUSY_LOOP = (sys.executable, "-c", "while True: pass")
_MARGIN_SECONDS = 0.5
"""A stop ends so long before the deadline: on a busy machine SIGCONT comes late, too."""


def measure_overload(
    folder: Path, *, seconds: float, deadline_seconds: float, seed: int
) -> dict[str, Any]:
    """Stop nodes at random for a while under load, and count what was taken for lost."""
    nodes = [f"node-{index}" for index in range(NUM_NODES)]
    rng, stops = random.Random(seed), []
    folder.mkdir(parents=True, exist_ok=True)
    text = write_text(folder / "text.txt")
    with ExitStack() as stack:
        network = stack.enter_context(Network(nodes))
        cluster = stack.enter_context(
            Cluster(folder / "cluster", network=network, node_deadline_seconds=deadline_seconds)
        )
        cluster.start(NUM_NODES)
        job_id = cluster.client.submit(job("paced", text, steps=MANY_STEPS, seed=seed)).id
        first_step = cluster.wait_for_step(job_id, 2).step
        for _ in range(LOOPS_OF_A_CORE * (os.cpu_count() or 1)):
            stack.callback(subprocess.Popen(_BUSY_LOOP).kill)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stops.append(rng.uniform(0.0, deadline_seconds - _MARGIN_SECONDS))
            _stop(cluster, rng.choice(nodes), stops[-1])
            time.sleep(rng.uniform(0.0, deadline_seconds))
        losses = Counter(e.type for e in cluster.client.events() if e.type in LOSSES)
        last_step = cluster.client.get_job(job_id).step
        load = os.getloadavg()[0]
        cluster.client.cancel_job(job_id)
    print(f"{len(stops)} stops in {seconds:.0f} s: {dict(losses) or 'nobody'} lost", flush=True)
    return {
        "seed": seed,
        "seconds": seconds,
        "deadline_seconds": deadline_seconds,
        "busy_loops_of_a_core": LOOPS_OF_A_CORE,
        "load_at_the_end": load,
        "stops": summary(stops),
        "steps": last_step - first_step,
        "losses": {kind: losses[kind] for kind in LOSSES},
    }


def _stop(cluster: Cluster, node_id: str, seconds: float) -> None:
    cluster.signal_node(node_id, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        cluster.signal_node(node_id, signal.SIGCONT)
