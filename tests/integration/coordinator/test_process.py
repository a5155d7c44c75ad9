"""`planaria-coordinator` as a process: how it starts, what it says when it cannot, how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from planaria_common.netutil import free_port

pytestmark = pytest.mark.integration

SPEC = {
    "name": "small",
    "model": {
        "family": "llama",
        "hidden_size": 64,
        "num_layers": 4,
        "num_heads": 4,
        "vocab_size": 256,
    },
    "data": {"path": "/data.txt", "tokenizer": "byte", "sequence_length": 32},
    "training": {"steps": 5, "global_batch_size": 8, "microbatch_size": 2},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    process: subprocess.Popen[str]
    facts: dict[str, Any]
    client: httpx.Client


def command(data_dir: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "planaria_coordinator",
        f"--data-dir={data_dir}",
        "--http-port=0",
        "--grpc-port=0",
        f"--planner-addresses=127.0.0.1:{free_port()}",
        *arguments,
    ]


@pytest.fixture(scope="module")
def planner_address() -> Iterator[str]:
    planner = subprocess.Popen(
        [sys.executable, "-m", "planaria_planner", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert planner.stdout is not None
    with planner:
        try:
            yield json.loads(planner.stdout.readline().partition(" ")[2])["grpc_address"]
        finally:
            planner.kill()


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PLANARIA_")}


@contextmanager
def run(data_dir: Path, *arguments: str) -> Iterator[Running]:
    process = subprocess.Popen(
        command(data_dir, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    with process:
        try:
            word, _, facts = process.stdout.readline().partition(" ")
            assert word == "ready"
            found = json.loads(facts)
            token = (data_dir / "token").read_text().strip()
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(
                base_url=found["http_url"], headers=headers, timeout=30, trust_env=False
            ) as client:
                yield Running(process=process, facts=found, client=client)
        finally:
            process.kill()


def refusal(data_dir: Path, *arguments: str) -> tuple[int, str]:
    """Return exit status and standard error of a coordinator that cannot start."""
    ended = subprocess.run(
        command(data_dir, *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )
    assert ended.stdout == ""
    return ended.returncode, ended.stderr.strip()


def test_it_starts_serves_and_ends(tmp_path: Path) -> None:
    """One ready line, both servers behind it, and an orderly end with status 0."""
    with run(tmp_path) as coordinator:
        assert coordinator.facts["pid"] == coordinator.process.pid
        info = coordinator.client.get("/api/v1/info").json()
        assert info["grpc_endpoints"] == [coordinator.facts["grpc_address"]]
        assert info["http_url"] == coordinator.facts["http_url"]
        assert coordinator.client.get("/healthz").status_code == 200
        readiness = coordinator.client.get("/readyz")
        assert (readiness.status_code, readiness.json()["metadata"]["part"]) == (503, "planner")
        with coordinator.client.stream(
            "GET", "/api/v1/events", headers={"accept": "text/event-stream"}
        ) as watching:
            next(watching.iter_lines())
            coordinator.process.send_signal(signal.SIGTERM)
            assert coordinator.process.wait(timeout=20) == 0


def test_what_was_submitted_outlives_a_kill(
    tmp_path: Path, planner_address: str, database_url: str
) -> None:
    """A job that was acknowledged is never lost, and its request id makes no second one."""
    options = (f"--planner-addresses={planner_address}", f"--database-url={database_url}")
    body = {"spec": SPEC, "request_id": "once"}
    with run(tmp_path, *options) as coordinator:
        assert coordinator.client.get("/readyz").status_code == 200
        created = coordinator.client.post("/api/v1/jobs", json=body)
        assert created.status_code == 201, created.text
        coordinator.process.kill()
        coordinator.process.wait(timeout=20)
    with run(tmp_path, *options) as coordinator:
        again = coordinator.client.post("/api/v1/jobs", json=body)
        jobs = coordinator.client.get("/api/v1/jobs").json()["jobs"]
        events = coordinator.client.get("/api/v1/events").json()["events"]

    assert [job["id"] for job in jobs] == [created.json()["id"]] == [again.json()["id"]]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port"])
def test_a_port_in_use_is_one_line(tmp_path: Path, option: str) -> None:
    """The option that chooses another port is named; the exit status is that of wrong usage."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, error = refusal(tmp_path, f"{option}={port}")

    assert (status, error) == (
        2,
        f"error: port {port} is in use: choose another with {option}, or 0 for a free one",
    )


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--host=0.0.0.0"], 2, "a token is needed: give its file with --token-file"),
        (["--token-file=/nowhere/token"], 1, "token file /nowhere/token cannot be read"),
        (["--database-url=mysql://x/y"], 2, "--database-url"),
        (["--database-url=postgresql://127.0.0.1:1/x"], 1, "cannot be used"),
        (["--heartbeat-interval-seconds=soon"], 2, "--heartbeat-interval-seconds"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    """No stack trace: the setting, and what would be right."""
    found, error = refusal(tmp_path, *arguments)

    assert found == status
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
