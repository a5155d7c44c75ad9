"""Does what a schedule says to a cluster with a job on it, and checks what came of it."""

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.chaos import checks
from benchmarks.chaos.schedule import LOSSES, OF_NO_NODE, Event, make_schedule
from benchmarks.common.cluster import Cluster
from benchmarks.common.full_disk import without_writes
from benchmarks.common.jobs import small_job
from benchmarks.common.processes import Part
from benchmarks.common.workbench import Run, Workbench
from benchmarks.oracle.from_spec import reference_run
from planaria.job import JobSpec

NUM_NODES = 6
NODE_DEADLINE_SECONDS = 4.0
BRIEF_STOP_SECONDS = 0.6
STOP_SECONDS = NODE_DEADLINE_SECONDS + 2.0
SECONDS_TO_NOTICE = 1.0
"""After which a loss is known to the coordinator; a stop, as much behind its deadline."""
POLL_SECONDS = 0.05
END_TIMEOUT_SECONDS = 300.0


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


def run_schedule(
    folder: Path, seed: int, *, num_events: int, spec: JobSpec, expected: Expected
) -> Outcome:
    """Start a cluster, train the job through a schedule to its end, and check everything.

    Args:
        folder: for everything that is written; must not exist.
        seed: of the schedule.
        num_events: how many; those after the job's end are not done.
        spec: the job.
        expected: what it ends with.
    """
    start = time.monotonic()
    with Workbench(folder, NUM_NODES, node_deadline_seconds=NODE_DEADLINE_SECONDS) as bench:
        run = bench.train(spec)
        disturbance = Disturbance(bench.cluster, run, bench.start_node)
        problems: list[str] = []
        done: tuple[Event, ...] = ()
        try:
            done = disturbance.do(make_schedule(seed, num_events, NUM_NODES))
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


class Disturbance:
    """Does events to the nodes of a cluster; never more than the job promises to survive."""

    def __init__(self, cluster: Cluster, run: Run, start_node: Callable[[str], None]) -> None:
        self.done: list[Event] = []
        self._cluster = cluster
        self._run = run
        self._start_node = start_node
        self._later: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self._losses_left = 0
        self._noticed_by = 0.0
        self._coordinator_start: datetime | None = None
        """Present until every agent has spoken to a coordinator that was restarted."""

    def do(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """Do one event after the other until the job ends; return those that were done."""
        self._run.wait_until_whole(NUM_NODES)
        step_seconds = self._run.step_seconds()
        for event in events:
            self._pause(event.delay_steps * step_seconds)
            if not self._wait_until_possible(event):
                break
            self._do(event)
            self.done.append(event)
        self._wait_for(lambda: not self._later or self._run.job.is_done)
        for _, action in self._later:
            action()
        return tuple(self.done)

    def _wait_until_possible(self, event: Event) -> bool:
        """Wait until the job survives the event, and its node is not busy with an earlier one."""

        def possible() -> bool:
            if self._run.job.is_done:
                return True
            if event.kind in ("join", "kill_coordinator"):
                return True
            if event.kind in OF_NO_NODE:
                return not self._later  # nobody could be woken meanwhile
            if not self._is_ready(event.node_id):
                return False
            return event.kind not in LOSSES or self._may_lose_another()

        self._wait_for(possible)
        return not self._run.job.is_done

    def _is_ready(self, node_id: str) -> bool:
        """Whether the coordinator knows the agent that was started last, and counts on it."""
        known = {node.id for node in self._cluster.client.list_nodes()}
        return node_id in known and self._cluster.is_ready(node_id)

    def _may_lose_another(self) -> bool:
        """A loss counts until the job runs again; what it survives then, its plan says.

        A job that runs may not have noticed the loss yet; one that frees a node runs all the while.
        """
        self._expect_news_of_agents()
        is_freeing = any(node.state == "DRAINING" for node in self._cluster.client.list_nodes())
        is_noticed = time.monotonic() > self._noticed_by and not is_freeing
        if is_noticed and self._run.job.state == "RUNNING":
            self._losses_left = self._run.plan.fault_tolerance
        return self._losses_left > 0

    def _expect_news_of_agents(self) -> None:
        """A restarted coordinator knows of no loss before agents report it."""
        start = self._coordinator_start
        if start is None:
            return
        alive = [n for n in self._cluster.client.list_nodes() if n.id in self._cluster.nodes]
        if all(node.heartbeat_time and node.heartbeat_time > start for node in alive):
            self._coordinator_start = None
        self._noticed_by = max(self._noticed_by, time.monotonic() + SECONDS_TO_NOTICE)

    def _do(self, event: Event) -> None:
        cluster, node_id = self._cluster, event.node_id
        if event.kind in LOSSES:
            self._losses_left -= 1
            unnoticed_seconds = NODE_DEADLINE_SECONDS if event.kind == "stop" else 0.0
            self._noticed_by = time.monotonic() + unnoticed_seconds + SECONDS_TO_NOTICE
        match event.kind:
            case "kill":
                cluster.kill_node(node_id)
            case "kill_engine":
                cluster.kill_engines(node_id)
            case "kill_agent":
                cluster.kill_agent(node_id)
                self._start_node(node_id)
            case "kill_coordinator":
                cluster.kill_coordinator()
                self._coordinator_start = datetime.now(UTC)
                cluster.start_coordinator()
            case "stop_coordinator":
                self._stop_all([cluster.coordinator])
            case "stop_agents":
                self._stop_all(cluster.nodes.values())
            case "fill_disks":
                self._fill_disks([cluster.coordinator, *cluster.nodes.values()])
            case "stop":
                self._stop(node_id, STOP_SECONDS)
            case "stop_briefly":
                self._stop(node_id, BRIEF_STOP_SECONDS)
            case "drain":
                self._drain(node_id, lambda: cluster.kill_node(node_id))
            case "drain_and_return":
                self._drain(node_id, lambda: _ignore(cluster.client.uncordon_node(node_id)))
            case "join":
                self._start_node(node_id)

    def _stop_all(self, parts: Iterable[Part | None]) -> None:
        """Stop some processes for longer than any deadline, while engines train."""
        processes = [part.process for part in parts if part is not None]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(STOP_SECONDS)
        for process in processes:
            process.send_signal(signal.SIGCONT)
        self._noticed_by = time.monotonic() + NODE_DEADLINE_SECONDS + SECONDS_TO_NOTICE

    def _fill_disks(self, parts: Iterable[Part | None]) -> None:
        """Let nobody store anything for longer than any deadline, while engines train."""
        with without_writes(part.process.pid for part in parts if part is not None):
            time.sleep(STOP_SECONDS)

    def _stop(self, node_id: str, seconds: float) -> None:
        self._cluster.signal_node(node_id, signal.SIGSTOP)
        stopped, end = self._cluster.nodes[node_id], time.monotonic() + seconds

        def wake() -> None:
            if self._cluster.nodes.get(node_id) is stopped:  # nobody has killed it meanwhile
                self._cluster.signal_node(node_id, signal.SIGCONT)

        self._later.append((lambda: time.monotonic() > end, wake))

    def _drain(self, node_id: str, then: Callable[[], None]) -> None:
        self._cluster.client.drain_node(node_id)
        self._later.append(
            (lambda: self._cluster.client.get_node(node_id).state == "DRAINED", then)
        )

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._wait_for(lambda: time.monotonic() > end)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait, and do meanwhile what was put off; AssertionError if it takes too long."""

        def met() -> bool:
            for item in [each for each in self._later if each[0]()]:
                self._later.remove(item)
                item[1]()
            return condition()

        self._cluster.wait_for("what the schedule says next", met, END_TIMEOUT_SECONDS)


def _ignore(_: object) -> None:
    """Take a result that nobody needs."""
