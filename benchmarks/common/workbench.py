"""A cluster with a traced job on it, whose nodes are hurt at known moments of one clock.

with Workbench(folder, num_nodes=6) as bench:
    run = bench.train(job("real", bench.text, steps=10_000, seed=1))
    run.wait_until_whole()
    kill = run.kill(node_id)
    recovery = run.wait_for_recovery(kill)
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks import REPOSITORY
from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import write_text
from benchmarks.common.trace import EngineTrace, read_traces
from planaria.job import JobSpec
from planaria.models import Job, Pipeline, Plan, Recovery, StepMetrics
from planaria_worker.engine.telemetry import ENVIRONMENT_VARIABLE

POLL_SECONDS = 0.1
QUIET_SECONDS = 1.0
"""How long nobody is asked for anything behind a fault: the processes have the cores to themselves.
A question and its answer take several milliseconds of a core."""
TIMEOUT_SECONDS = 120.0
NUM_QUIET_SECONDS = 7
"""Nodes without engines begin to load what is left after five."""
QUIET_PERCENT = 40.0
"""Of the busiest core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurt:
    """Something that was done to a node, or asked of it."""

    node_id: str
    at: float
    """Seconds of CLOCK_MONOTONIC."""
    time: float
    """Seconds since 1970, of the same moment."""
    generation: int
    """Of the plan at that moment."""
    plan: Plan
    num_recoveries: int
    """Recorded before."""

    @property
    def num_lost_microbatches(self) -> int:
        """Microbatches that the pipelines of this node run in a step."""
        return sum(
            len(pipeline.microbatches)
            for pipeline in self.plan.pipelines
            if self.node_id in node_ids(pipeline)
        )


class Workbench:
    """Real processes on loopback; ends them all when it is left."""

    def __init__(
        self, folder: Path, num_nodes: int, *, cluster_type: type[Cluster] = Cluster, **options: Any
    ) -> None:
        """Starts nothing yet.

        Args:
            folder: for everything that is written; must not exist.
            num_nodes: how many are started.
            cluster_type: how parts are started.
            options: those of the cluster.
        """
        self.folder = folder
        self.text = write_text(folder / "text.txt")
        self._traces = folder / "traces"
        self._traces.mkdir()
        self._num_nodes = num_nodes
        self._num_started = 0
        self.cluster = cluster_type(folder / "cluster", **options)

    def __enter__(self) -> Self:
        try:
            self.cluster.start_planner()
            self.cluster.start_coordinator()
            for _ in range(self._num_nodes):
                self.add_node()
            self.cluster.wait_for_nodes(self._num_nodes)
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cluster.__exit__(exception_type, exception, traceback)

    def add_node(self) -> str:
        """Start a node with a name that was never used."""
        node_id = f"node-{self._num_started:03d}"
        self._num_started += 1
        self.start_node(node_id)
        return node_id

    def start_node(self, node_id: str) -> None:
        """Start a node of this name, or its agent again."""
        self.cluster.start_node(node_id, self._environment())

    def wait_until_quiet(self) -> None:
        """Nodes load libraries when they start: a job that measures its layers then plans badly."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        quiet = 0
        while quiet < NUM_QUIET_SECONDS:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the machine was not quiet within {TIMEOUT_SECONDS} s")
            busiest = max(psutil.cpu_percent(interval=1.0, percpu=True))
            quiet = quiet + 1 if busiest < QUIET_PERCENT else 0

    def train(self, spec: JobSpec) -> "Run":
        """Submit a job."""
        tokens_per_step = spec.training.global_batch_size * spec.data.sequence_length
        return Run(self, self.cluster.client.submit(spec).id, tokens_per_step)

    def traces(self, job_id: str) -> list[EngineTrace]:
        return read_traces(self._traces, job_id)

    def _environment(self) -> Mapping[str, str]:
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {ENVIRONMENT_VARIABLE: str(self._traces), "PYTHONPATH": os.pathsep.join(paths)}


class Run:
    """A job that trains on a workbench."""

    def __init__(self, bench: Workbench, job_id: str, tokens_per_step: int) -> None:
        self.bench = bench
        self.job_id = job_id
        self._tokens_per_step = tokens_per_step
        self._cluster = bench.cluster

    @property
    def job(self) -> Job:
        return self._cluster.client.get_job(self.job_id)

    @property
    def plan(self) -> Plan:
        plan = self._cluster.client.job_plan(self.job_id).plan
        if plan is None:
            raise AssertionError(f"{self.job_id} has no plan")
        return plan

    @property
    def metrics(self) -> tuple[StepMetrics, ...]:
        return self._cluster.client.job_metrics(self.job_id)

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        return self._cluster.client.job_recoveries(self.job_id)

    @property
    def traces(self) -> list[EngineTrace]:
        return self.bench.traces(self.job_id)

    @property
    def node_ids(self) -> list[str]:
        """The nodes that have a place."""
        return sorted({n for pipeline in self.plan.pipelines for n in node_ids(pipeline)})

    def cancel(self) -> None:
        """End the job and wait until its engines are gone."""
        self._cluster.client.cancel_job(self.job_id)
        self._cluster.wait_for(
            "no engine to be left",
            lambda: not any(map(self._cluster.engine_pids, self._cluster.nodes)),
        )

    def step_seconds(self) -> float:
        """Return about how long a step takes now; the coordinator must have some."""
        self.wait_for("a speed", lambda: self.job.tokens_per_second > 0)
        return self._tokens_per_step / self.job.tokens_per_second

    def wait_until_whole(self, num_nodes: int, num_steps: int = 2) -> None:
        """Wait until so many nodes train, and have committed some steps since."""
        self.wait_for(f"{num_nodes} nodes to train", lambda: self._is_whole(num_nodes))
        step = self.job.step
        self.wait_for("further steps", lambda: self.job.step >= step + num_steps)

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait; AssertionError when it takes too long or the job has failed."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            job = self.job
            if job.state == "FAILED":
                raise AssertionError(f"{self.job_id} failed: {job.error}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {TIMEOUT_SECONDS} s in vain for: {what}")
            time.sleep(POLL_SECONDS)

    def kill(self, node_id: str, *others: str, delay_seconds: float = 0.0) -> Hurt:
        """Kill -9 engines and agents of nodes, in the shortest possible time.

        Args:
            node_id: the node that the result names.
            others: nodes that die at the same moment.
            delay_seconds: how long to wait before, after the last question to the coordinator.
        """
        before, names = self._before(node_id), (node_id, *others)
        pids = [pid for name in names for pid in self._cluster.engine_pids(name)]
        parts = [self._cluster.nodes.pop(name) for name in names]
        time.sleep(delay_seconds)
        at = time.perf_counter()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for part in parts:
            part.process.kill()
        for part in parts:
            part.end()
        return before(at)

    def stop(self, node_id: str) -> Hurt:
        """Send SIGSTOP to engines and agent of a node."""
        before = self._before(node_id)
        at = time.perf_counter()
        self._cluster.signal_node(node_id, signal.SIGSTOP)
        return before(at)

    def drain(self, node_id: str) -> Hurt:
        before = self._before(node_id)
        at = time.perf_counter()
        self._cluster.client.drain_node(node_id)
        return before(at)

    def leave(self, node_id: str) -> None:
        """End the agent of a drained node."""
        self._cluster.kill_node(node_id)

    def wait_for_recovery(self, hurt: Hurt) -> Recovery:
        """Wait until what was done to a node is over; return its record."""
        time.sleep(QUIET_SECONDS)
        self.wait_for(
            f"the recovery from {hurt.node_id}",
            lambda: len(self.recoveries) > hurt.num_recoveries,
        )
        return self.recoveries[hurt.num_recoveries]

    def private_bytes(self) -> list[int]:
        """Return the private memory of each engine, in bytes."""
        pids = [
            pid for node_id in self._cluster.nodes for pid in self._cluster.engine_pids(node_id)
        ]
        return [psutil.Process(pid).memory_full_info().uss for pid in pids]

    def _is_whole(self, num_nodes: int) -> bool:
        job = self.job
        if job.state != "RUNNING":
            return False
        return len(self.node_ids) == num_nodes

    def _before(self, node_id: str) -> Callable[[float], Hurt]:
        generation, plan, count = self.job.generation, self.plan, len(self.recoveries)
        return lambda at: Hurt(
            node_id=node_id,
            at=at,
            time=time.time() - (time.perf_counter() - at),
            generation=generation,
            plan=plan,
            num_recoveries=count,
        )


def node_ids(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the nodes of a pipeline, in the order of its stages."""
    return tuple(dict.fromkeys(stage.node_id for stage in pipeline.stages))
