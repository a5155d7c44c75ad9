"""docker-compose.yml and the Dockerfiles, as far as they can be checked without a Docker daemon."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from planaria_worker.agent.life import MAX_END_SECONDS
from planaria_worker.agent.settings import WorkerSettings
from support.repository import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXIT_SECONDS = 5.0
"""What Python itself and a busy machine take besides."""
DOCKERFILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))


def test_the_file_follows_the_compose_schema() -> None:
    """Docker Compose would accept it."""
    command = Path(sys.executable).with_name("check-jsonschema")
    result = subprocess.run(
        [command, "--builtin-schema", "vendor.compose-spec", ROOT / "docker-compose.yml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout


def test_an_agent_that_is_asked_to_end_is_given_the_time_to() -> None:
    """Killed before, it leaves engines behind, and its node is not known to have left."""
    grace_seconds = WorkerSettings.model_fields["drain_grace_seconds"].default
    guide = (ROOT / "docs/how-to/several-machines.md").read_text(encoding="utf-8")
    patience = [SERVICES["worker"]["stop_grace_period"].removesuffix("s")]
    patience += re.findall(r"(?:TimeoutStopSec=|terminationGracePeriodSeconds: )(\d+)", guide)
    assert len(patience) == 3
    assert min(map(int, patience)) > grace_seconds + MAX_END_SECONDS + EXIT_SECONDS


def test_every_dockerfile_has_a_service_and_every_service_its_dockerfile() -> None:
    """Nothing is built that is not run, nor run that cannot be built."""
    built = {s["build"]["dockerfile"] for s in SERVICES.values() if "build" in s}
    assert built == {f"deploy/{path.name}" for path in DOCKERFILES}


def test_services_that_are_waited_for_can_be_waited_for() -> None:
    """Whoever waits for `service_healthy` waits for something that has a health check."""
    for name, service in SERVICES.items():
        for dependency, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[dependency], f"{name} waits for {dependency}"


def test_volumes_are_declared() -> None:
    """A misspelt volume would silently be a new, empty one."""
    used = {
        mount.split(":")[0]
        for service in SERVICES.values()
        for mount in service.get("volumes", [])
        if not mount.startswith(".")
    }
    assert used == set(COMPOSE["volumes"])


def test_nothing_is_published_beyond_this_machine() -> None:
    """Without a deliberate change, no port can be reached from elsewhere."""
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_no_secret_has_a_default() -> None:
    """The password comes from the user; the token is made at random."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert re.findall(r"\$\{(\w+):-", text) == []
    assert "${DATABASE_PASSWORD:?" in text


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_files_a_dockerfile_copies_reach_the_builder(path: Path) -> None:
    """Each COPY source exists and is not kept out by .dockerignore."""
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("COPY ") or "--from=" in line:
            continue
        for source in line.split()[1:-1]:
            assert (ROOT / source).exists(), source
            top = f"!{source.split('/')[0]}"
            assert source == "." or any(rule.startswith(top) for rule in allowed), source


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_no_image_runs_as_root(path: Path) -> None:
    """A service that is broken into has no privileges."""
    text = path.read_text(encoding="utf-8")
    assert "\nUSER planaria\n" in text or "nginx-unprivileged" in text
