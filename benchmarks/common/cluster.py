"""A cluster of real processes on loopback, to be hurt on purpose.

    with Cluster(tmp_path) as cluster:
        cluster.start(num_nodes=5)
        job = cluster.client.submit(spec)
        cluster.wait_for_step(job.id, 5)
        cluster.kill_node("node-2")
        assert cluster.wait_for_end(job.id).state == "SUCCEEDED"

Every part listens on a free port, keeps its files below the cluster's folder and is ended by pid.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.common.network import Network
from benchmarks.common.ports import free_port
from benchmarks.common.processes import Part, start_process
from planaria import Client, ConflictError
from planaria.models import Job, Node
from planaria_common.credentials import ensure_token
from planaria_worker.agent.engine_process import find_engine

COORDINATOR = "coordinator"
"""What a network calls the cable of coordinator and planner, where they have one."""
DEFAULT_TIMEOUT_SECONDS = 150.0
POLL_SECONDS = 0.05


class Cluster:
    """A planner, a coordinator and nodes; ends them all when it is left."""

    def __init__(
        self, folder: Path, *, network: Network | None = None, **coordinator_settings: object
    ) -> None:
        """Starts nothing yet.

        Args:
            folder: for the files of all parts.
            network: where the nodes are, and the coordinator if it has a cable; None: loopback.
            coordinator_settings: options of the coordinator.
        """
        self.folder = folder
        self.network = network
        self.host = "127.0.0.1"
        self._prefix_of_services: Sequence[str] = ()
        if network is not None:
            self._join(network)
        self.environment: dict[str, str] = {}
        self.nodes: dict[str, Part] = {}
        self.planner: Part | None = None
        self.coordinator: Part | None = None
        self._client: Client | None = None
        # Test machines are busy: a node must not count as lost because it had no processor.
        self._settings = {"node_deadline_seconds": 10, **coordinator_settings}
        self._planner_port = free_port()
        self._http_port = free_port()
        self._grpc_port = free_port()

    def _join(self, network: Network) -> None:
        self.host = network.host
        if COORDINATOR in network:
            self.host = network.address(COORDINATOR)
            self._prefix_of_services = network.prefix(COORDINATOR)
        ensure_token(self.token_file.parent)  # without one nobody listens beyond loopback

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is not None:
            sys.stderr.write(self.describe())
        self.stop()

    # -- starting ---------------------------------------------------------------------------------

    @property
    def token_file(self) -> Path:
        return self.folder / "coordinator" / "token"

    @property
    def grpc_address(self) -> str:
        return f"{self.host}:{self._grpc_port}"

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    @property
    def client(self) -> Client:
        if self._client is None:
            url = f"http://{self.host}:{self._http_port}"
            self._client = Client(url, token=self.token)
        return self._client

    def start(self, num_nodes: int, environment: Mapping[str, str] | None = None) -> None:
        """Start everything and wait until all nodes are ready."""
        self.planner = self._begin_planner()
        self.coordinator = self._begin_coordinator()
        self.planner.wait_ready()
        self.coordinator.wait_ready()
        for index in range(num_nodes):
            self.start_node(f"node-{index}", environment)
        self.wait_for_nodes(num_nodes)

    def start_planner(self) -> None:
        self.planner = self._begin_planner()
        self.planner.wait_ready()

    def start_coordinator(self) -> None:
        self.coordinator = self._begin_coordinator()
        self.coordinator.wait_ready()

    def _begin_planner(self) -> Part:
        options = _flags({"port": self._planner_port})
        prefix = self._prefix_of_services
        return self._start("planner", "planaria_planner", options, prefix=prefix)

    def _begin_coordinator(self) -> Part:
        """Start a coordinator, which finds its planner as soon as there is one."""
        options: dict[str, object] = {
            "data-dir": self.folder / "coordinator",
            "host": self.host,
            "http-port": self._http_port,
            "grpc-port": self._grpc_port,
            "planner-addresses": f"127.0.0.1:{self._planner_port}",
            **{name.replace("_", "-"): value for name, value in self._settings.items()},
        }
        prefix = self._prefix_of_services
        return self._start("coordinator", "planaria_coordinator", _flags(options), prefix=prefix)

    def start_node(self, node_id: str, environment: Mapping[str, str] | None = None) -> None:
        """Start an agent; `wait_for_nodes` tells when it is ready."""
        options = {
            "coordinator": self.grpc_address,
            "node-id": node_id,
            "data-dir": self.folder / node_id,
            "token-file": self.token_file,
            "accelerator-memory-bytes": 2**30,
            **self.node_options(node_id),
        }
        self.nodes[node_id] = self._start(
            node_id,
            "planaria_worker",
            _flags(options),
            environment={**self.environment, **(environment or {})},
            prefix=self.network.prefix(node_id) if self.network else (),
        )

    def node_options(self, node_id: str) -> Mapping[str, object]:
        """Further options of an agent, for clusters of another kind to add to."""
        return {"advertise-address": self.network.address(node_id)} if self.network else {}

    def _start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Part:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        process = start_process(
            module,
            arguments,
            environment={"OMP_NUM_THREADS": "1", **(environment or {})},
            log=log,
            prefix=prefix,
        )
        return Part(name=name, process=process, log=log)

    # -- hurting ----------------------------------------------------------------------------------

    def engine_pids(self, node_id: str) -> list[int]:
        """Return the live engines of a node, asked without the coordinator."""
        root = self.folder / node_id / "engines"
        folders = root.iterdir() if root.exists() else ()
        found = [find_engine(folder) for folder in folders]
        return [process.pid for process in found if process is not None]

    def kill_node(self, node_id: str) -> None:
        """Kill -9 the agent and the engines of a node, as a power cut would."""
        engines = self.engine_pids(node_id)
        self.nodes[node_id].process.kill()
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        self.nodes.pop(node_id).end()

    def kill_engines(self, node_id: str) -> None:
        """Kill -9 the engines of a node; its agent lives on."""
        for pid in self.engine_pids(node_id):
            os.kill(pid, signal.SIGKILL)

    def signal_node(self, node_id: str, number: signal.Signals) -> None:
        """Send a signal (SIGSTOP, SIGCONT) to the agent and the engines of a node."""
        for pid in self.engine_pids(node_id):
            os.kill(pid, number)
        self.nodes[node_id].process.send_signal(number)

    def kill_agent(self, node_id: str) -> None:
        """Kill -9 the agent of a node; its engines live on."""
        self.nodes.pop(node_id).end()

    def kill_coordinator(self) -> None:
        assert self.coordinator is not None
        self.coordinator.end()
        self.coordinator = None

    def signal_coordinator(self, number: signal.Signals) -> None:
        """Send a signal (SIGSTOP, SIGCONT) to the coordinator."""
        assert self.coordinator is not None
        self.coordinator.process.send_signal(number)

    def heal(self, num_nodes: int) -> None:
        """Bring a cluster that has been hurt back to `num_nodes` ready nodes and nothing else."""
        wanted = {f"node-{index}" for index in range(num_nodes)}
        for job in self.client.list_jobs():
            if not job.is_done:
                self.client.cancel_job(job.id)
        for node_id in self.nodes.keys() - wanted:
            self._dismiss_node(node_id)
        for node_id in sorted(wanted - self.nodes.keys()):
            self.start_node(node_id)
        self.wait_for("other nodes to be forgotten", lambda: self._has_forgotten_others(wanted))
        for node in self.client.list_nodes():
            if node.state in ("DRAINED", "DRAINING", "CORDONED"):
                self.client.uncordon_node(node.id)
        self.wait_for("all nodes to be ready", lambda: all(map(self.is_ready, wanted)))

    def _dismiss_node(self, node_id: str) -> None:
        """End a node; one that has been drained is forgotten without waiting for its deadline."""
        states = {node.id: node.state for node in self.client.list_nodes()}
        if states.get(node_id) == "READY":
            self.client.drain_node(node_id)
            self.wait_for_node(node_id, "DRAINED")
        self.kill_node(node_id)

    def _has_forgotten_others(self, wanted: set[str]) -> bool:
        """Forget other nodes that can be; tell whether none was left."""
        others = [node for node in self.client.list_nodes() if node.id not in wanted]
        for node in others:
            if node.state in ("LOST", "DRAINED"):
                with contextlib.suppress(ConflictError):  # its session is about to end
                    self.client.remove_node(node.id)
        return not others

    def is_ready(self, node_id: str) -> bool:
        """Tell whether the coordinator counts on the agent that was started last."""
        node = self.client.get_node(node_id)
        return node.state == "READY" and node.agent_pid == self.nodes[node_id].process.pid

    # -- waiting ----------------------------------------------------------------------------------

    def wait_for(
        self, what: str, condition: Callable[[], bool], timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        """Wait until a condition holds; AssertionError if it never does."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout} s in vain for: {what}")
            time.sleep(POLL_SECONDS)

    def wait_for_nodes(self, count: int, state: str = "READY") -> list[Node]:
        def ready() -> list[Node]:
            return [node for node in self.client.list_nodes() if node.state == state]

        self.wait_for(f"{count} nodes {state}", lambda: len(ready()) == count)
        return ready()

    def wait_for_node(self, node_id: str, state: str) -> None:
        """Wait until one node is in a state."""
        self.wait_for(
            f"{node_id} to be {state}", lambda: self.client.get_node(node_id).state == state
        )

    def wait_for_step(self, job_id: str, step: int, **options: float) -> Job:
        """Wait until a job has committed so many steps."""
        self.wait_for(
            f"{job_id} at step {step}",
            lambda: self._running(job_id).step >= step,
            **options,
        )
        return self.client.get_job(job_id)

    def wait_for_state(self, job_id: str, *states: str, **options: float) -> Job:
        self.wait_for(
            f"{job_id} to be {' or '.join(states)}",
            lambda: self.client.get_job(job_id).state in states,
            **options,
        )
        return self.client.get_job(job_id)

    def wait_for_end(self, job_id: str, **options: float) -> Job:
        """Wait until a job has ended, one way or another."""
        self.wait_for(f"the end of {job_id}", lambda: self._ended(job_id), **options)
        return self.client.get_job(job_id)

    def _running(self, job_id: str) -> Job:
        job = self.client.get_job(job_id)
        if job.state in ("FAILED", "CANCELLED"):
            raise AssertionError(f"{job_id} is {job.state}: {job.error}")
        return job

    def _ended(self, job_id: str) -> bool:
        return self.client.get_job(job_id).is_done

    # -- telling and ending ------------------------------------------------------------------------

    def describe(self) -> str:
        """Return events and the ends of all logs, for a failed test."""
        parts = [*self.folder.glob("*.log"), *self.folder.glob("node-*/engines/*/engine.log")]
        texts = [
            f"== {path.relative_to(self.folder)}\n{path.read_text()[-3000:]}" for path in parts
        ]
        try:
            events = [f"{event.type}: {event.message}" for event in self.client.events()]
        except Exception as error:  # the cluster may be in any state
            events = [f"no events: {error}"]
        return "\n".join(["", *texts, "== events", *events, ""])

    def stop(self) -> None:
        """End every process; engines first, so that no agent reports them."""
        for node_id, part in list(self.nodes.items()):
            pids = self.engine_pids(node_id)
            part.end()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it may just have ended
                    os.kill(pid, signal.SIGKILL)
        for orphan in self.folder.glob("node-*/engines/*"):
            process = find_engine(orphan)
            if process is not None:
                process.signal(signal.SIGKILL)
        for service in (self.coordinator, self.planner):
            if service is not None and service.process.poll() is None:
                service.end(signal.SIGTERM)
        if self._client is not None:
            self._client.close()


def _flags(options: Mapping[str, object]) -> list[str]:
    return [item for name, value in options.items() for item in (f"--{name}", str(value))]
