"""The plan is invisible to the model [6]: one digest, on however many nodes, through failures."""

import random
import time
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from benchmarks.oracle.reference import ReferenceResult
from planaria.job import JobSpec
from planaria.models import Job

pytestmark = pytest.mark.e2e

STEPS = 40


def on_nodes(text: Path, num_nodes: int, **changes: object) -> JobSpec:
    """Return the job that every test here trains, on so many nodes."""
    return small_job(
        text,
        training__steps=STEPS,
        resilience__fault_tolerance=0 if num_nodes < 4 else 1,
        resources__min_nodes=num_nodes,
        resources__max_nodes=num_nodes,
        resources__min_nodes_per_pipeline=min(2, num_nodes),
        **changes,
    )


@pytest.fixture(scope="module")
def expected(text: Path, tmp_path_factory: pytest.TempPathFactory) -> ReferenceResult:
    """Return what a plain loop in one process ends with, and what it tells of its steps."""
    spec = on_nodes(text, 1)
    return reference_run(spec, tmp_path_factory.mktemp("oracle"))


def succeeded(job: Job) -> Job:
    assert job.state == "SUCCEEDED", job.error
    assert job.step == STEPS
    return job


def tells_of_every_step(cluster: Cluster, job_id: str, expected: ReferenceResult) -> None:
    """What the model does is the oracle's, bit for bit; how fast it is, is known from the start."""
    steps = list(cluster.client.steps(job_id))
    assert [metrics.step for metrics in steps] == list(range(STEPS))
    assert [metrics.loss for metrics in steps] == expected.losses
    assert [metrics.gradient_norm for metrics in steps] == expected.norms
    assert [metrics.learning_rate for metrics in steps] == expected.learning_rates
    for metrics in steps:
        assert metrics.tokens_per_second > 0
        assert metrics.model_flops_utilization is not None
        assert metrics.model_flops_utilization > 0


def test_one_digest_on_1_2_3_and_5_nodes(
    five_nodes: Cluster, text: Path, expected: ReferenceResult
) -> None:
    """The same job on clusters of different size does what the oracle does."""
    digests = {}
    for num_nodes in (1, 2, 3, 5):
        job = five_nodes.client.submit(on_nodes(text, num_nodes))
        digests[num_nodes] = succeeded(five_nodes.wait_for_end(job.id)).final_digest
        plan = five_nodes.client.job_plan(job.id).plan
        assert plan is not None
        assert sum(len(p.stages) for p in plan.pipelines) == num_nodes
        tells_of_every_step(five_nodes, job.id, expected)
    assert digests == dict.fromkeys(digests, expected.digest)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_digest_through_kills_at_random_moments(
    five_nodes: Cluster, text: Path, expected: ReferenceResult, seed: int
) -> None:
    """Two of five nodes are killed at random moments and a replacement joins."""
    chance = random.Random(seed)
    spec = on_nodes(text, 5).model_copy(
        update={"resources": on_nodes(text, 5).resources.model_copy(update={"max_nodes": None})}
    )
    job = five_nodes.client.submit(spec)
    for after_step in (3, 8):
        five_nodes.wait_for_step(job.id, after_step)
        five_nodes.wait_for_state(job.id, "RUNNING")
        time.sleep(chance.uniform(0, 0.3))
        five_nodes.kill_node(chance.choice(sorted(five_nodes.nodes)))
    five_nodes.start_node("node-5")
    end = succeeded(five_nodes.wait_for_end(job.id))
    assert end.final_digest == expected.digest
    recoveries = five_nodes.client.job_recoveries(job.id)
    assert sum(len(recovery.nodes_lost) for recovery in recoveries) == 2
    tells_of_every_step(five_nodes, job.id, expected)
