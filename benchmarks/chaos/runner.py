"""Trains a job through a schedule on a cluster, and checks what came of it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos import checks
from benchmarks.chaos.disturbance import (
    END_TIMEOUT_SECONDS,
    NODE_DEADLINE_SECONDS,
    Disturbance,
)
from benchmarks.chaos.schedule import OF_NETWORK, Event, make_schedule, node_name
from benchmarks.common.cluster import COORDINATOR
from benchmarks.common.jobs import small_job
from benchmarks.common.moving import MovingCluster
from benchmarks.common.network import Network, NetworkError
from benchmarks.common.postgres import postgres_server, programs
from benchmarks.common.workbench import Run, Workbench
from benchmarks.oracle.from_spec import reference_run
from planaria.job import JobSpec

NUM_NODES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a job ends with when nothing happens to it."""

    digest: str
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one schedule."""

    seed: int
    done: tuple[Event, ...]
    """The events that came before the job's end."""
    problems: tuple[str, ...]
    """Empty when everything was as it must be."""
    num_recoveries: int
    redone_microbatches: int
    seconds: float
    database: str
    """What the coordinator stored in; it is frozen and replaced only where this is a server."""
    without_network: str
    """Why nothing of the network was disturbed; empty: it was."""


def chaos_job(text: Path, steps: int) -> JobSpec:
    """Return the job that all schedules disturb."""
    return small_job(
        text,
        model__hidden_size=32,
        data__sequence_length=32,
        training__steps=steps,
        training__global_batch_size=24,
        resources__min_nodes=NUM_NODES,
        resources__min_nodes_per_pipeline=2,
    )


def undisturbed(spec: JobSpec, cache_dir: Path) -> Expected:
    """Train the job with the tests' oracle: one process, a plain loop."""
    result = reference_run(spec, cache_dir)
    return Expected(digest=result.digest, losses=tuple(result.losses))


def why_no_network() -> str:
    """Say why this machine allows no network namespaces with nftables; empty: it does."""
    try:
        with Network(["a"]) as network:
            network.filter("a", "input", "counter")
    except NetworkError as error:
        return str(error)
    return ""


def planned(seed: int, num_events: int, without_network: str) -> tuple[Event, ...]:
    """Return the schedule of a seed."""
    return make_schedule(seed, num_events, NUM_NODES, OF_NETWORK if without_network else ())


def run_schedule(
    folder: Path,
    seed: int,
    *,
    num_events: int,
    spec: JobSpec,
    expected: Expected,
    without_network: str,
) -> Outcome:
    """Start a cluster, train the job through a schedule to its end, and check everything.

    Args:
        folder: for everything that is written; must not exist.
        seed: of the schedule.
        num_events: how many; those after the job's end are not done.
        spec: the job.
        expected: what it ends with.
        without_network: why nodes have no network of their own; empty: they have.
    """
    start = time.monotonic()
    events = planned(seed, num_events, without_network)
    database = database_of(seed)
    with _bench(folder, events, database, has_network=not without_network) as bench:
        run = bench.train(spec)
        assert isinstance(bench.cluster, MovingCluster)
        disturbance = Disturbance(bench.cluster, run, bench.start_node)
        problems: list[str] = []
        done: tuple[Event, ...] = ()
        try:
            done = disturbance.do(events)
            bench.cluster.wait_for_end(run.job_id, timeout=END_TIMEOUT_SECONDS)
        except AssertionError as error:
            problems.append(f"it hangs: {error}")
            done = tuple(disturbance.done)
        problems += _problems(run, done, spec, expected)
        recoveries = run.recoveries
    return Outcome(
        seed=seed,
        done=done,
        problems=tuple(problems),
        num_recoveries=len(recoveries),
        redone_microbatches=sum(recovery.redone_microbatches for recovery in recoveries),
        seconds=time.monotonic() - start,
        database=database,
        without_network=without_network,
    )


def database_of(seed: int) -> str:
    """Return what the coordinator stores in: a server for odd seeds, if there is one."""
    return "postgresql" if seed % 2 and programs() is not None else "sqlite"


@contextmanager
def _bench(
    folder: Path, events: Sequence[Event], database: str, *, has_network: bool
) -> Iterator[Workbench]:
    """Run a cluster of which nodes and coordinator have cables, and the database has none."""
    names = {event.node_id for event in events if event.node_id}
    names |= {node_name(number) for number in range(NUM_NODES)}
    options: dict[str, Any] = {"node_deadline_seconds": NODE_DEADLINE_SECONDS}
    with ExitStack() as stack:
        host = "127.0.0.1"
        if has_network:
            network = stack.enter_context(Network([COORDINATOR, *sorted(names)]))
            options["network"], host = network, network.host
        if database == "postgresql":
            options["database_url"] = stack.enter_context(postgres_server(host))
        yield stack.enter_context(
            Workbench(folder, NUM_NODES, cluster_type=MovingCluster, **options)
        )


def _problems(run: Run, done: tuple[Event, ...], spec: JobSpec, expected: Expected) -> list[str]:
    job, traces = run.job, run.traces
    if job.state != "SUCCEEDED":
        return list(checks.same_model(job, expected.digest))
    num_layers = max(
        event.detail["first_layer"] + event.detail["num_layers"]
        for trace in traces
        for event in trace.events
        if event.name == "assignment"
    )
    return [
        *checks.same_model(job, expected.digest),
        *checks.every_step_once(run.metrics, expected.losses),
        *checks.ledger_is_exact(
            traces,
            num_steps=spec.training.steps,
            num_layers=num_layers,
            num_microbatches=spec.num_microbatches,
        ),
        *checks.nobody_restarted_in_vain(traces, done),
    ]
