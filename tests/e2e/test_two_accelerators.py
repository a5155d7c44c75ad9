"""Nodes with two accelerators, on real processes: an engine is lost, then a node with both of its.

A node with one engine has no place in a plan until the other one is back; what is left on it
goes on to serve its layers.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from e2e.matrix.pace import Pace
from planaria.models import Job, Plan, Recovery
from support.pool import Pool

pytestmark = pytest.mark.e2e

STEPS = 60
FAILED_STEP = 3
PACED_STEPS = range(6, 56)
CRASHED, DEAD = "node-1", "node-2"


class Pairs(Pool):
    """Every node has two accelerators."""

    def node_options(self, node_id: str) -> Mapping[str, object]:
        return {**super().node_options(node_id), "num-accelerators": 2}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with Pairs(tmp_path / "cluster", node_deadline_seconds=10) as running:
        yield running


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("num_nodes", "nodes_per_pipeline", "told"),
    [
        (3, 1, []),
        pytest.param(4, 2, ["reduced", "restored", "reduced"], marks=pytest.mark.slow),
    ],
)
def test_an_engine_and_then_a_node_with_both_of_its_engines_are_lost(
    pool: Pool, text: Path, tmp_path: Path, num_nodes: int, nodes_per_pipeline: int, told: list[str]
) -> None:
    """[5, 6, 8] The other engine of the node is not restarted, and the digest is the same.

    With fewer replicas than f + 1 the job goes on, and says so, as it does when they are back.
    """
    spec = small_job(
        text,
        training__steps=STEPS,
        resources__min_nodes=num_nodes,
        resources__max_nodes=num_nodes,
        resources__min_nodes_per_pipeline=nodes_per_pipeline,
    )
    expected = reference_run(spec, tmp_path / "oracle")
    pool.start(num_nodes)
    script = pool.new_script()
    crash = script.add(at="forward", step=FAILED_STEP, action="kill", engine=f"*/{CRASHED}/1/*")
    pace = Pace(pool, script, list(pool.nodes), PACED_STEPS)
    job = pool.client.submit(spec)
    first = started(pool, job, num_nodes)
    pool.wait_for_mark(script, crash)

    pace.wait_for("another engine to join", lambda: joined(pool, job) == [(CRASHED,)])
    assert by_accelerator(pool, job, CRASHED)["0"] == first[CRASHED]["0"], "nobody else died"
    assert len(by_accelerator(pool, job, CRASHED)["1"]) == 2
    assert_on_distinct_nodes(plan_of(pool, job), fault_tolerance=1)

    pool.kill_agent(DEAD)
    log = pool.folder / "coordinator.log"
    pool.wait_for("its session to end", lambda: session_has_ended(log, DEAD))
    pool.kill_engines(DEAD)
    pace.wait_for("the loss of the node", lambda: (DEAD,) in lost(pool, job))
    pace.end()
    end = pool.wait_for_end(job.id)

    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == expected.digest
    assert [metrics.loss for metrics in pool.client.job_metrics(job.id)] == expected.losses
    causes = [recovery.cause for recovery in recoveries(pool, job)]
    assert causes == ["engine_lost", "node_joined", "node_lost"]
    assert lost(pool, job) == [(), (), (DEAD,)]
    types = [event.type for event in pool.client.events(job_id=job.id)]
    prefix = "fault_tolerance_"
    assert [each.removeprefix(prefix) for each in types if each.startswith(prefix)] == told
    for node_id in first.keys() - {CRASHED, DEAD}:
        assert by_accelerator(pool, job, node_id) == first[node_id], "nobody else was restarted"


def session_has_ended(log: Path, node_id: str) -> bool:
    """Whether peers that report an engine of the node cannot be the first to tell of its loss."""
    lines = log.read_text().splitlines()
    return any("session_ended" in line and node_id in line for line in lines)


def started(pool: Pool, job: Job, num_nodes: int) -> dict[str, dict[str, list[int]]]:
    """Return the engines that a job begins with, by node: two of each, and all have a place."""
    pool.wait_for_step(job.id, 1)
    plan = plan_of(pool, job)
    places = [(s.node_id, s.accelerators) for p in plan.pipelines for s in p.stages]
    assert len(set(places)) == len(places) == 2 * num_nodes
    assert_on_distinct_nodes(plan, fault_tolerance=1)
    engines = {node_id: by_accelerator(pool, job, node_id) for node_id in pool.nodes}
    assert all(each.keys() == {"0", "1"} for each in engines.values())
    return engines


def by_accelerator(pool: Pool, job: Job, node_id: str) -> dict[str, list[int]]:
    """Return the processes of all engines that a job ever had on a node, by accelerator."""
    found: dict[str, list[int]] = {}
    for engine, pid in sorted(pool.engines_of(job.id, node_id).items()):
        found.setdefault(engine.split(".")[-2], []).append(pid)
    return found


def plan_of(pool: Pool, job: Job) -> Plan:
    plan = pool.client.job_plan(job.id).plan
    assert plan is not None
    return plan


def recoveries(pool: Pool, job: Job) -> list[Recovery]:
    return sorted(pool.client.job_recoveries(job.id), key=lambda recovery: recovery.id)


def joined(pool: Pool, job: Job) -> list[tuple[str, ...]]:
    return [each.nodes_joined for each in recoveries(pool, job) if each.cause == "node_joined"]


def lost(pool: Pool, job: Job) -> list[tuple[str, ...]]:
    return [each.nodes_lost for each in recoveries(pool, job)]


def assert_on_distinct_nodes(plan: Plan, *, fault_tolerance: int) -> None:
    """[5] Every layer has its replicas on f + 1 nodes: two accelerators of one count once."""
    nodes: dict[int, set[str]] = {}
    for stage in (stage for pipeline in plan.pipelines for stage in pipeline.stages):
        for layer in range(stage.first_layer, stage.first_layer + stage.num_layers):
            nodes.setdefault(layer, set()).add(stage.node_id)
    assert min(len(each) for each in nodes.values()) > fault_tolerance, nodes
    assert plan.fault_tolerance >= fault_tolerance
