"""Many nodes fall silent at once, and nothing ails them: nobody is lost, and training goes on."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.cluster import COORDINATOR
from benchmarks.common.jobs import small_job
from benchmarks.common.moving import MovingCluster
from benchmarks.oracle.from_spec import reference_run
from benchmarks.oracle.reference import ReferenceResult
from e2e.matrix.pace import hold
from planaria.job import JobSpec
from planaria.models import Job
from support.network import Network, NetworkError
from support.pool import Pool, Script

pytestmark = pytest.mark.e2e

NUM_NODES = 4
STEPS = 16
FIRST_HELD, LAST_HELD = 4, 12
"""The fault begins when the job is held in the first of these steps, and ends before the second."""
DEADLINE_SECONDS = 2


class MovingPool(MovingCluster, Pool):
    """A pool whose agents know a second address of the coordinator."""


@pytest.fixture(scope="module")
def spec(text: Path) -> JobSpec:
    """Two pipelines of two nodes each."""
    return small_job(
        text,
        training__steps=STEPS,
        resources__min_nodes=NUM_NODES,
        resources__max_nodes=NUM_NODES,
        resources__min_nodes_per_pipeline=2,
    )


@pytest.fixture(scope="module")
def expected(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> ReferenceResult:
    return reference_run(spec, tmp_path_factory.mktemp("oracle"))


OPTIONS: dict[str, Any] = {
    "node_deadline_seconds": DEADLINE_SECONDS,
    "progress_deadline_seconds": 60,
}


@pytest.fixture
def isolated(no_forks: None, tmp_path: Path) -> Iterator[tuple[Pool, Network]]:
    nodes = [f"node-{index}" for index in range(NUM_NODES)]
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network([*nodes, COORDINATOR]))
        except NetworkError as error:
            pytest.skip(f"no network namespaces: {error}")
        pool = stack.enter_context(Pool(tmp_path / "cluster", network=network, **OPTIONS))
        pool.start(NUM_NODES)
        yield pool, network


class Held:
    """A job that is held in two of its steps."""

    def __init__(self, pool: Pool, spec: JobSpec) -> None:
        script: Script = pool.new_script()
        self._pool = pool
        self._gates = [script.gate(), script.gate()]
        for step, gate in zip((FIRST_HELD, LAST_HELD), self._gates, strict=True):
            for node_id in pool.nodes:
                hold(script, node_id, step, gate)
        self.job: Job = pool.client.submit(spec)
        pool.wait_for_step(self.job.id, FIRST_HELD)

    def train_on(self) -> None:
        """Wait until all engines have committed the steps between; nobody need be heard."""
        self._gates[0].touch()
        self._pool.wait_for("the next steps", lambda: self._num_commits() >= LAST_HELD)

    def let_go(self) -> None:
        """Train to the end without a stop."""
        for gate in self._gates:
            gate.touch()

    def _num_commits(self) -> int:
        traces = self._pool.trace(self.job.id)
        return min(len(trace.events("commit")) for trace in traces)

    def check_end(self, expected: ReferenceResult) -> None:
        """The job ends with the very bits of an undisturbed run, and nobody was lost."""
        self.let_go()
        end = self._pool.wait_for_end(self.job.id)
        assert end.state == "SUCCEEDED", end.error
        assert end.final_digest == expected.digest
        assert not {"node_lost", "engine_lost"} & set(self.event_types())
        assert end.conditions == ()
        for node_id in self._pool.nodes:
            assert len(self._pool.engines_of(self.job.id, node_id)) == 1

    def event_types(self) -> list[str]:
        return [event.type for event in self._pool.client.events()]


def wait_seconds(pool: Pool, seconds: float) -> None:
    """Wait for a fault to last so long."""
    end = time.monotonic() + seconds
    pool.wait_for(f"{seconds} s to pass", lambda: time.monotonic() > end)


def silent_nodes(pool: Pool, job: Job) -> tuple[str, ...]:
    """Return the nodes that a job says are silent."""
    conditions = pool.client.get_job(job.id).conditions
    return tuple(node_id for each in conditions for node_id in each.node_ids)


def cut_the_coordinator_off(
    isolated: tuple[Pool, Network], spec: JobSpec, seconds: float, expected: ReferenceResult
) -> None:
    pool, network = isolated
    held = Held(pool, spec)
    network.cut(COORDINATOR)
    began = time.monotonic()
    held.train_on()
    wait_seconds(pool, began + seconds - time.monotonic())
    network.heal(COORDINATOR)
    pool.wait_for("nodes to be heard", lambda: "nodes_heard" in held.event_types())
    held.check_end(expected)
    assert "nodes_silent" in held.event_types()
    assert pool.client.job_recoveries(held.job.id) == ()


def test_a_coordinator_that_is_cut_off_takes_nobody_to_be_lost(
    isolated: tuple[Pool, Network], spec: JobSpec, expected: ReferenceResult
) -> None:
    """[5, 10] Its own cable is pulled for longer than the deadline: training notices nothing."""
    cut_the_coordinator_off(isolated, spec, 3 * DEADLINE_SECONDS, expected)


@pytest.mark.slow
def test_a_coordinator_that_is_cut_off_for_long_takes_nobody_to_be_lost(
    isolated: tuple[Pool, Network], spec: JobSpec, expected: ReferenceResult
) -> None:
    """[5, 10] Longer than leases, and than connections outlive by themselves."""
    cut_the_coordinator_off(isolated, spec, 30.0, expected)


@pytest.mark.slow
def test_a_machine_whose_cable_is_pulled_is_lost_since_others_do_not_reach_it(
    isolated: tuple[Pool, Network], spec: JobSpec
) -> None:
    pool, network = isolated
    held = Held(pool, spec)
    network.cut("node-1")
    pool.wait_for_node("node-1", "LOST")
    lost = [event for event in pool.client.events() if event.type == "node_lost"]
    assert [event.node_id for event in lost] == ["node-1"]
    assert "not reach it" in lost[0].message
    network.heal("node-1")
    pool.client.cancel_job(held.job.id)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with Pool(tmp_path / "cluster", **OPTIONS) as pool:
        pool.start(NUM_NODES)
        yield pool


def signal_agents(pool: Pool, nodes: Sequence[str], number: signal.Signals) -> None:
    for node_id in nodes:
        pool.nodes[node_id].process.send_signal(number)


def stop_all_agents(
    pool: Pool, spec: JobSpec, until: Callable[[Held], None], expected: ReferenceResult
) -> None:
    held = Held(pool, spec)
    nodes = sorted(pool.nodes)
    signal_agents(pool, nodes[:3], signal.SIGSTOP)
    pool.wait_for("a condition", lambda: set(silent_nodes(pool, held.job)) == set(nodes[:3]))
    signal_agents(pool, nodes[3:], signal.SIGSTOP)
    until(held)
    pool.wait_for("a condition", lambda: set(silent_nodes(pool, held.job)) == set(nodes))
    states = {node.id: node.state for node in pool.client.list_nodes()}
    assert set(states.values()) == {"READY"}
    signal_agents(pool, nodes, signal.SIGCONT)
    held.check_end(expected)


def test_agents_that_are_all_stopped_are_not_lost(
    pool: Pool, spec: JobSpec, expected: ReferenceResult
) -> None:
    """[5, 10] First three of four, then all: engines train on, and the job says who is silent."""
    stop_all_agents(pool, spec, Held.train_on, expected)


@pytest.mark.slow
def test_agents_that_are_all_stopped_for_longer_than_their_lease_are_not_lost(
    pool: Pool, spec: JobSpec, expected: ReferenceResult
) -> None:
    """[5, 10] Engines fence themselves, and are resumed when the silence ends."""
    stop_all_agents(pool, spec, lambda _: wait_seconds(pool, 25.0), expected)


def test_a_coordinator_that_moves_takes_nobody_to_be_lost(
    tmp_path: Path, spec: JobSpec, expected: ReferenceResult
) -> None:
    """[7, 10] Agents find it at the other address that they know."""
    with MovingPool(tmp_path / "cluster", **OPTIONS) as pool:
        pool.start(NUM_NODES)
        held = Held(pool, spec)
        pool.move_coordinator()
        held.train_on()
        pool.wait_for_step(held.job.id, LAST_HELD)
        held.check_end(expected)
        assert pool.client.job_recoveries(held.job.id) == ()


@pytest.mark.slow
def test_an_evicted_node_is_lost_at_once_and_joins_afresh(
    pool: Pool, spec: JobSpec, expected: ReferenceResult
) -> None:
    """Whatever it did since counts for nothing."""
    held = Held(pool, spec)
    assert pool.client.evict_node("node-1").state == "LOST"
    pool.wait_for_node("node-1", "READY")
    held.let_go()
    end = pool.wait_for_end(held.job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == expected.digest
