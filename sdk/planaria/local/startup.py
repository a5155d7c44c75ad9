"""One run of `planaria up`: starts the parts in order, waits for each, and can undo it all."""

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import planaria
from planaria.client import Client
from planaria.errors import UnavailableError
from planaria.local import state as local_state
from planaria.local.gpus import agent_environment, visible_gpus
from planaria.local.processes import (
    ProcessIdentity,
    find_workers,
    is_alive,
    reap,
    start_module,
)
from planaria.local.processes import stop as stop_processes
from planaria.local.state import LocalCluster, ProcessRecord

STOP_GRACE_SECONDS = 10.0
_READY_TIMEOUT_SECONDS = 90.0
_POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What to start.

    Attributes:
        port: of REST and the page; 0 takes a free one.
        database_url: of the coordinator; SQLite in the data directory when None.
    """

    num_nodes: int
    accelerators_per_node: int
    port: int
    data_dir: Path
    database_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is started, and started again.

    Attributes:
        environment: what is added to ours; arguments could be read by everybody.
    """

    name: str
    module: str
    arguments: Mapping[str, str]
    environment: Mapping[str, str]
    log_file: Path

    def start(self) -> "Started":
        """Start its process.

        Raises:
            OSError: there can be no process, or no log.
        """
        log_offset = self.log_file.stat().st_size if self.log_file.exists() else 0
        identity = start_module(
            self.module,
            [word for option in self.arguments.items() for word in option],
            log_file=self.log_file,
            environment=self.environment,
        )
        return Started(service=self, identity=identity, log_offset=log_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process that was started.

    Attributes:
        log_offset: where its own lines begin: the file may hold those of earlier runs.
    """

    service: Service
    identity: ProcessIdentity
    log_offset: int

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def log_file(self) -> Path:
        return self.service.log_file

    def lines(self) -> list[str]:
        with self.log_file.open("rb") as file:
            file.seek(self.log_offset)
            return file.read().decode(errors="replace").splitlines()

    def ready_facts(self) -> dict[str, str] | None:
        """Return what the service announced, once it has."""
        announced = (line for line in self.lines() if line.startswith("ready {"))
        line = next((line for line in announced if line.endswith("}")), None)
        facts: dict[str, str] | None = json.loads(line.removeprefix("ready ")) if line else None
        return facts

    def record(self) -> ProcessRecord:
        return ProcessRecord(
            name=self.name,
            pid=self.identity.pid,
            start_ticks=self.identity.start_ticks,
            log_file=str(self.log_file),
        )


class Startup:
    """Remembers what it started."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._token_file = options.data_dir / "token"
        self._started: list[Started] = []
        self._deadline = time.monotonic() + _READY_TIMEOUT_SECONDS

    def run(self) -> LocalCluster:
        """Start everything, wait until every node is ready, and write down what runs.

        Raises:
            UnavailableError: a part ended or did not become ready in time; says what it logged.
                What was started is stopped again.
        """
        try:
            cluster = self._run()
            local_state.save(cluster)
        except BaseException:
            self.undo()
            raise
        return cluster

    @property
    def started(self) -> Sequence[Started]:
        """Everything, with the ports that it has."""
        return tuple(self._started)

    def _run(self) -> LocalCluster:
        options = self._options
        options.data_dir.mkdir(parents=True, exist_ok=True)
        _ensure_token(self._token_file)
        planner = self._wait_ready(self._start_planner())
        self._keep({"--port": _port(planner["grpc_address"])})
        coordinator = self._wait_ready(self._start_coordinator(planner["grpc_address"]))
        grpc_port, http_port = map(_port, (coordinator["grpc_address"], coordinator["http_url"]))
        self._keep({"--grpc-port": grpc_port, "--http-port": http_port})
        for index in range(options.num_nodes):
            self._start_agent(index, coordinator["grpc_address"])
        self._wait_nodes(coordinator["http_url"])
        return LocalCluster(
            http_url=coordinator["http_url"],
            grpc_address=coordinator["grpc_address"],
            data_dir=str(options.data_dir),
            token_file=str(self._token_file),
            processes=tuple(started.record() for started in self._started),
        )

    def _keep(self, ports: Mapping[str, str]) -> None:
        """Have what was started last keep its ports, should it be started again."""
        last = self._started[-1]
        service = replace(last.service, arguments={**last.service.arguments, **ports})
        self._started[-1] = replace(last, service=service)

    def undo(self) -> None:
        """End everything that was started."""
        workers = set(find_workers(str(self._options.data_dir)))
        identities = {started.identity for started in self._started}
        stop_processes(identities | workers, grace_seconds=STOP_GRACE_SECONDS)
        for identity in identities:
            reap(identity)

    def _start_planner(self) -> Started:
        return self._start("planner", "planaria_planner", {"--host": "127.0.0.1", "--port": "0"})

    def _start_coordinator(self, planner_address: str) -> Started:
        arguments = {
            "--data-dir": str(self._options.data_dir),
            "--host": "127.0.0.1",
            "--http-port": str(self._options.port),
            "--grpc-port": "0",
            "--planner-addresses": planner_address,
        }
        page = Path(planaria.__file__).parents[2] / "web" / "dist"
        if page.is_dir() and "PLANARIA_COORDINATOR_WEB_DIR" not in os.environ:
            arguments["--web-dir"] = str(page)
        # Not an argument: it may hold a password, and everybody may read a command line.
        url = self._options.database_url
        environment = {"PLANARIA_COORDINATOR_DATABASE_URL": url} if url else {}
        return self._start("coordinator", "planaria_coordinator", arguments, environment)

    def _start_agent(self, index: int, grpc_address: str) -> Started:
        node_id = f"node-{index + 1}"
        arguments = {
            "--coordinator": grpc_address,
            "--node-id": node_id,
            "--data-dir": str(self._options.data_dir / "nodes" / node_id),
            "--advertise-address": "127.0.0.1",
            "--num-accelerators": str(self._options.accelerators_per_node),
        }
        own_gpus = agent_environment(
            visible_gpus(os.environ),
            node_index=index,
            num_nodes=self._options.num_nodes,
            accelerators_per_node=self._options.accelerators_per_node,
        )
        # What the user has set counts more.
        environment = {**own_gpus, **_set_by_user("PLANARIA_WORKER_ACCELERATOR_KIND")}
        return self._start(node_id, "planaria_worker", arguments, environment)

    def _start(
        self,
        name: str,
        module: str,
        arguments: dict[str, str],
        environment: dict[str, str] | None = None,
    ) -> Started:
        service = Service(
            name=name,
            module=module,
            arguments={**arguments, "--token-file": str(self._token_file)},
            environment=environment or {},
            log_file=log_file_of(self._options.data_dir, name),
        )
        started = service.start()
        self._started.append(started)
        return started

    def _wait_ready(self, started: Started) -> dict[str, str]:
        return self._wait_for(started.ready_facts, f"the {started.name} to become ready", started)

    def _wait_nodes(self, http_url: str) -> None:
        expected = {started.name for started in self._started if started.name.startswith("node-")}
        token = self._token_file.read_text(encoding="ascii").strip()
        with Client(http_url, token=token) as client:

            def all_ready() -> bool | None:
                ready = {node.id for node in client.list_nodes() if node.state == "READY"}
                return True if expected <= ready else None

            self._wait_for(all_ready, "every node to become ready", self._started[-1])

    def _wait_for(self, look: Callable[[], T | None], what: str, part: Started) -> T:
        """Look again and again until there is something; nobody tells us."""
        while (found := look()) is None:
            for started in self._started:
                if not is_alive(started.identity):
                    raise _failed(started, f"{started.name} ended before it was ready")
            if time.monotonic() > self._deadline:
                raise _failed(part, f"waited {_READY_TIMEOUT_SECONDS:.0f} s for {what}")
            time.sleep(_POLL_SECONDS)
        return found


def log_file_of(data_dir: Path, name: str) -> Path:
    """Return the file of everything that a part writes."""
    return data_dir / "logs" / f"{name}.log"


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _set_by_user(variable: str) -> dict[str, str]:
    return {variable: os.environ[variable]} if variable in os.environ else {}


def _failed(started: Started, problem: str) -> UnavailableError:
    tail = "\n".join(f"  {line}" for line in started.lines()[-_LOG_TAIL_LINES:])
    return UnavailableError(
        f"{problem}; the end of {started.log_file}:\n{tail or '  (empty)'}",
        reason="UNAVAILABLE",
        metadata={"part": started.name, "log_file": str(started.log_file)},
    )


def _ensure_token(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
