"""Does what a schedule says to a cluster with a job on it."""

import signal
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from benchmarks.chaos.schedule import LOSSES, OF_NO_NODE, Event, Kind
from benchmarks.common.cluster import COORDINATOR
from benchmarks.common.full_disk import without_writes
from benchmarks.common.moving import MovingCluster
from benchmarks.common.network import RESET, Network
from benchmarks.common.processes import Part
from benchmarks.common.workbench import Run
from planaria_common.service import REPLACED_STATUS

NODE_DEADLINE_SECONDS = 4.0
BRIEF_STOP_SECONDS = 0.6
STOP_SECONDS = NODE_DEADLINE_SECONDS + 2.0
LINKS_SECONDS = 8.0
"""How long links are cut: engines accuse them after 2 to 4 s, and the job waits another second."""
SECONDS_TO_NOTICE = 1.0
"""After which a loss is known to the coordinator, if it was not hidden."""
UNNOTICED_SECONDS: dict[Kind, float] = {
    "stop": NODE_DEADLINE_SECONDS,
    "stop_agent": STOP_SECONDS,
    "unplug": STOP_SECONDS,
    "drop_links": LINKS_SECONDS,
    "reset_links": LINKS_SECONDS,
}
"""For so long a loss may be hidden from the coordinator."""
END_TIMEOUT_SECONDS = 300.0
REPLACED_TIMEOUT_SECONDS = 30.0


class Disturbance:
    """Does events to the nodes of a cluster; never more than the job promises to survive."""

    def __init__(self, cluster: MovingCluster, run: Run, start_node: Callable[[str], None]) -> None:
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
        self._run.wait_until_whole(len(self._cluster.nodes))
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
        self._expect_notice_in(0.0)

    def _expect_notice_in(self, seconds: float) -> None:
        self._noticed_by = max(self._noticed_by, time.monotonic() + seconds + SECONDS_TO_NOTICE)

    def _do(self, event: Event) -> None:
        cluster, node_id = self._cluster, event.node_id
        if event.kind in LOSSES:
            self._losses_left -= 1
            self._expect_notice_in(UNNOTICED_SECONDS.get(event.kind, 0.0))
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
            case "replace_coordinator":
                self._replace_coordinator()
            case "isolate_coordinator":
                self._isolate_coordinator()
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
            case "stop_agent":
                self._stop_agent(node_id)
            case "unplug":
                self._network.cut(node_id)
                self._after(STOP_SECONDS, lambda: self._network.heal(node_id))
            case "drop_links":
                self._cut_links(node_id, "drop", "input", "output")
            case "reset_links":
                self._cut_links(node_id, RESET, "input")
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
        self._expect_notice_in(NODE_DEADLINE_SECONDS)

    def _isolate_coordinator(self) -> None:
        """Pull the coordinator's cable for longer than any deadline, while engines train."""
        self._network.cut(COORDINATOR)
        time.sleep(STOP_SECONDS)
        self._network.heal(COORDINATOR)
        self._expect_notice_in(NODE_DEADLINE_SECONDS)

    def _replace_coordinator(self) -> None:
        """Start another coordinator at another address; the first one wakes up later, and ends."""
        frozen = self._cluster.replace_coordinator()
        self._coordinator_start = datetime.now(UTC)
        if frozen is None:
            return
        process = frozen.process

        def wake() -> None:
            process.send_signal(signal.SIGCONT)
            self._cluster.wait_for(
                f"the replaced coordinator to end with status {REPLACED_STATUS}",
                lambda: process.poll() == REPLACED_STATUS,
                REPLACED_TIMEOUT_SECONDS,
            )

        self._after(STOP_SECONDS, wake)

    def _fill_disks(self, parts: Iterable[Part | None]) -> None:
        """Let nobody store anything for longer than any deadline, while engines train."""
        with without_writes(part.process.pid for part in parts if part is not None):
            time.sleep(STOP_SECONDS)

    def _stop(self, node_id: str, seconds: float) -> None:
        self._cluster.signal_node(node_id, signal.SIGSTOP)
        stopped = self._cluster.nodes[node_id]

        def wake() -> None:
            if self._cluster.nodes.get(node_id) is stopped:  # nobody has killed it meanwhile
                self._cluster.signal_node(node_id, signal.SIGCONT)

        self._after(seconds, wake)

    def _stop_agent(self, node_id: str) -> None:
        """Silence a node for longer than its deadline, while its engine trains."""
        process = self._cluster.nodes[node_id].process
        process.send_signal(signal.SIGSTOP)
        self._after(STOP_SECONDS, lambda: process.send_signal(signal.SIGCONT))

    def _cut_links(self, node_id: str, answer: str, *hooks: str) -> None:
        """Let a node reach only the coordinator, until the job has done without it."""
        self._network.cut_from_peers(node_id, self._cluster.host, answer, hooks)
        self._after(LINKS_SECONDS, lambda: self._network.unfilter(node_id))

    @property
    def _network(self) -> Network:
        network = self._cluster.network
        assert network is not None
        return network

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        end = time.monotonic() + seconds
        self._later.append((lambda: time.monotonic() > end, action))

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
