"""The commands of docker-compose.yml as processes: what containers would run, without Docker."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from benchmarks.common.ports import free_port
from benchmarks.common.postgres import PASSWORD, postgres_server
from benchmarks.common.processes import Part
from planaria import Client
from support.postgres import needs_postgres
from support.repository import ROOT

pytestmark = pytest.mark.integration

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(
    (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
)["services"]
TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.1


class Containers:
    """Runs services of the Compose file with the names and paths of this machine."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder = folder
        self.ports = {number: free_port() for number in ("50061", "8080", "50051")}
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        self._names = {
            "0.0.0.0": "127.0.0.1",  # noqa: S104 - replaced, not listened on
            "/run/planaria": str(folder / "run"),
            "$$(hostname -i)": "127.0.0.1",
            "coordinator:50051": "127.0.0.1:50051",
            "planner:50061": "127.0.0.1:50061",
            "${DATABASE_PASSWORD}": PASSWORD,
            "@database/": f"@{urlsplit(database_url).netloc.rpartition('@')[2]}/",
        }

    def run(self, service: str) -> None:
        """Run a service that ends by itself."""
        subprocess.run(
            self._command(service, service), env=self._environment, check=True, timeout=60
        )

    @contextmanager
    def running(self, service: str, name: str) -> Iterator[None]:
        """Run a service inside the block, under the name of a container."""
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self._command(service, name),
                env={**self._environment, **self._variables(service, name)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        try:
            yield
        finally:
            Part(name=name, process=process, log=self._folder / f"{name}.log").end(signal.SIGTERM)

    def wait_until_healthy(self, service: str) -> None:
        """Ask the service's own health check until it is content."""
        _, *question = SERVICES[service]["healthcheck"]["test"]
        command = [self._here(word, service) for word in question]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while subprocess.run(
            command, env=self._environment, capture_output=True, check=False
        ).returncode:
            log = (self._folder / f"{service}.log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline, f"{service} does not become healthy:\n{log}"
            time.sleep(POLL_SECONDS)

    def _command(self, service: str, name: str) -> list[str]:
        described = SERVICES[service]
        words = [*described.get("entrypoint", _entry_point(service)), *described["command"]]
        return [self._here(word, name) for word in words]

    def _variables(self, service: str, name: str) -> Mapping[str, str]:
        variables = SERVICES[service].get("environment", {})
        # A container's host name is the default of its node id.
        node = {"PLANARIA_WORKER_NODE_ID": name} if service == "worker" else {}
        return {key: self._here(value, name) for key, value in variables.items()} | node

    def _here(self, text: str, name: str) -> str:
        """Put this machine's names, paths and ports in the place of the containers'."""
        text = text.replace("/var/lib/planaria", str(self._folder / name))
        for there, here in self._names.items():
            text = text.replace(there, here)
        for there, port in self.ports.items():
            text = re.sub(rf"(?<=[=:' ]){there}\b", str(port), text)
        return text


def _entry_point(service: str) -> list[str]:
    text = (ROOT / SERVICES[service]["build"]["dockerfile"]).read_text(encoding="utf-8")
    (found,) = re.findall(r"^ENTRYPOINT (.*)$", text, flags=re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def _wait_for_nodes(client: Client, wanted: set[str]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while {node.id for node in client.list_nodes() if node.state == "READY"} != wanted:
        assert time.monotonic() < deadline, client.list_nodes()
        time.sleep(POLL_SECONDS)


@needs_postgres
def test_the_commands_make_a_cluster(tmp_path: Path) -> None:
    """Token, planner, coordinator on PostgreSQL and two workers find each other."""
    (tmp_path / "run").mkdir(mode=0o700)
    with ExitStack() as parts:
        database_url = parts.enter_context(postgres_server())
        containers = Containers(tmp_path, database_url)
        containers.run("token")
        parts.enter_context(containers.running("planner", "planner"))
        containers.wait_until_healthy("planner")
        parts.enter_context(containers.running("coordinator", "coordinator"))
        containers.wait_until_healthy("coordinator")
        for name in ("worker-1", "worker-2"):
            parts.enter_context(containers.running("worker", name))
        token = (tmp_path / "run" / "token").read_text(encoding="utf-8").strip()
        url = f"http://127.0.0.1:{containers.ports['8080']}"
        client = parts.enter_context(Client(url, token=token))
        _wait_for_nodes(client, {"worker-1", "worker-2"})
        # nginx passes requests on under the coordinator's name.
        passed_on = httpx.get(f"{url}/api/v1/nodes", headers={"Host": "coordinator:8080"})
        assert passed_on.status_code == 200
