"""A user's program decides which nodes a job gets; without it the cluster decides by itself."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from e2e.conftest import NUM_NODES
from planaria.job import JobSpec
from planaria.models import Job
from support.repository import ROOT

pytestmark = pytest.mark.e2e

MEMORY_BYTES = 10_000_000
"""Of the model, 8.5 MB of state and 4.6 MB of activations for each microbatch in flight."""

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


@pytest.fixture(scope="module")
def small_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of nodes that hold half of the model, and one second for decisions."""
    folder = tmp_path_factory.mktemp("small") / "cluster"
    with SmallNodes(folder, decision_deadline_seconds=1) as cluster:
        cluster.start(NUM_NODES)
        yield cluster


class SmallNodes(Cluster):
    def node_options(self, node_id: str) -> Mapping[str, object]:
        return {"accelerator-memory-bytes": MEMORY_BYTES, "label": f"rack={node_id}"}


@pytest.fixture(scope="module")
def trained(text: Path) -> JobSpec:
    """Two pipelines by the nodes' memory."""
    return small_job(text, training__steps=24, scheduler="mine", resources__min_nodes=NUM_NODES)


@pytest.fixture(scope="module")
def digest(trained: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> str:
    return reference_run(trained, tmp_path_factory.mktemp("oracle")).digest


RULES = {
    "layers": "pipelines[0].stages[0].first_layer is 1, must be 0",
    "accelerator": "pipelines[0].stages[1].accelerators is 0, which an earlier stage has",
    "lost node": "pipelines[0].stages[0].node_id is 'node-3', must be one of node-0, node-1",
    "microbatches": "must have each of the 8 microbatches exactly once",
    "memory": "does not fit into",
    "fault tolerance": "must be on 2 (resilience.fault_tolerance)",
    "late": "did not answer within 1 s",
    "hang": "did not answer within 1 s",
    "killed": "disconnected before it answered",
    "garbage": "disconnected before it answered",
    "double": "",
}
QUICK = "memory"


@pytest.mark.parametrize(
    "behaviour",
    [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in RULES],
)
def test_a_scheduler_that_misbehaves_in_a_recovery_changes_nothing(
    small_nodes: Cluster, trained: JobSpec, digest: str, behaviour: str
) -> None:
    """The planner's plan is taken, an event names the rule, and the model is the same."""
    ended = train_through_a_kill(small_nodes, trained, behaviour)
    assert ended.final_digest == digest
    told = overrulings(small_nodes, ended.id)
    if RULES[behaviour]:
        assert RULES[behaviour] in told[0]
    else:
        assert told == []
    assert len([message for message in told if "did not answer" in message]) <= 1
    assert small_nodes.client.get_node("node-0").labels == {"rack": "node-0"}


@pytest.mark.slow
def test_a_plan_that_survives_less_is_taken_if_the_job_file_allows_it(
    small_nodes: Cluster, text: Path, tmp_path: Path
) -> None:
    """An event says so."""
    spec = small_job(
        text,
        training__steps=24,
        scheduler="mine",
        resources__min_nodes=NUM_NODES,
        resilience__min_fault_tolerance=0,
    )
    ended = train_through_a_kill(small_nodes, spec, "fault tolerance")
    assert ended.final_digest == reference_run(spec, tmp_path).digest
    assert overrulings(small_nodes, ended.id) == []
    events = small_nodes.client.events(job_id=ended.id)
    assert "fault_tolerance_reduced" in {event.type for event in events}


def train_through_a_kill(cluster: Cluster, spec: JobSpec, behaviour: str) -> Job:
    """Train a job while a scheduler plans its recovery from the loss of a node."""
    cluster.heal(NUM_NODES)
    script = ("tests/support/misbehaving_scheduler.py", cluster.grpc_address, "mine")
    with run(*script, str(cluster.token_file), behaviour) as scheduler:
        job = cluster.client.submit(spec)
        cluster.wait_for_step(job.id, 5)
        cluster.kill_node("node-3")
        assert read_line(scheduler) == f"asked: {behaviour}"
        ended = cluster.wait_for_end(job.id)
    assert ended.state == "SUCCEEDED", ended.error
    return ended


def nodes_of(cluster: Cluster, job_id: str) -> set[str]:
    plan = cluster.client.job_plan(job_id).plan
    assert plan is not None
    stages = (stage for pipeline in plan.pipelines for stage in pipeline.stages)
    return {stage.node_id for stage in stages} | set(plan.idle_node_ids)


def overrulings(cluster: Cluster, job_id: str) -> list[str]:
    events = cluster.client.events(job_id=job_id)
    return [event.message for event in events if event.type == "scheduler_overruled"]
