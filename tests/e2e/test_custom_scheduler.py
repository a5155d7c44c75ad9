"""A user's program decides which nodes a job gets; without it the cluster decides by itself."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from e2e.conftest import NUM_NODES
from support.repository import ROOT

pytestmark = pytest.mark.e2e

HANGING = """
import sys, threading
sys.path.insert(0, sys.argv[1])
import scheduler

def hang(request):
    print("asked", flush=True)
    threading.Event().wait()

scheduler.decide = hang
scheduler.run(sys.argv[2], sys.argv[3], open(sys.argv[4]).read().strip())
"""


@contextmanager
def run(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a scheduler inside the block, once it is registered."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with process:
        try:
            assert read_line(process).startswith("registered")
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_example_decides_which_nodes_a_job_gets(five_nodes: Cluster, text: Path) -> None:
    """It leaves half of the nodes to others, where the built-in policy would take all."""
    example = ("examples/scheduler.py", "--token-file", str(five_nodes.token_file))
    spec = small_job(text, name="modest", scheduler="frugal", resources__min_nodes=2)

    with run(*example, "--coordinator", five_nodes.grpc_address) as scheduler:
        job = five_nodes.client.submit(spec)
        assert read_line(scheduler) == "modest gets node-0, node-1"
        ended = five_nodes.wait_for_end(job.id)

    assert ended.state == "SUCCEEDED", ended.error
    assert nodes_of(five_nodes, job.id) == {"node-0", "node-1"}
    assert overrulings(five_nodes, job.id) == []


def test_a_scheduler_killed_in_the_middle_of_a_decision_is_overruled(
    five_nodes: Cluster, text: Path
) -> None:
    """The built-in policy takes over at once, and an event says why."""
    hanging = ("-c", HANGING, "examples", five_nodes.grpc_address, "hanging")
    spec = small_job(text, scheduler="hanging", resources__min_nodes=2)

    with run(*hanging, str(five_nodes.token_file)) as scheduler:
        job = five_nodes.client.submit(spec)
        assert read_line(scheduler) == "asked"
        scheduler.kill()
    ended = five_nodes.wait_for_end(job.id)

    assert ended.state == "SUCCEEDED", ended.error
    assert nodes_of(five_nodes, job.id) == {f"node-{index}" for index in range(NUM_NODES)}
    assert "disconnected before it answered" in overrulings(five_nodes, job.id)[0]


def nodes_of(cluster: Cluster, job_id: str) -> set[str]:
    plan = cluster.client.job_plan(job_id).plan
    assert plan is not None
    stages = (stage for pipeline in plan.pipelines for stage in pipeline.stages)
    return {stage.node_id for stage in stages} | set(plan.idle_node_ids)


def overrulings(cluster: Cluster, job_id: str) -> list[str]:
    events = cluster.client.events(job_id=job_id)
    return [event.message for event in events if event.type == "scheduler_overruled"]
