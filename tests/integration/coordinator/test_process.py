"""`planaria-coordinator` as a process: how it starts, what it says when it cannot, how it ends."""

import signal
import socket
import subprocess
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from integration.coordinator.process import SPEC, command, environment, run
from planaria.api.coordinator.v1.job_service_pb2 import ListJobsRequest
from planaria.api.coordinator.v1.job_service_pb2_grpc import JobServiceStub
from planaria_common.grpcwire import is_healthy

pytestmark = pytest.mark.integration


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


def test_the_coordinator_starts_serves_and_ends(tmp_path: Path) -> None:
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


def test_a_submitted_job_outlives_a_kill(
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


async def test_the_grpc_services_can_be_found(tmp_path: Path) -> None:
    """Health and reflection need no token; everything else does."""
    with run(tmp_path) as coordinator:
        async with grpc.aio.insecure_channel(coordinator.facts["grpc_address"]) as channel:
            assert await is_healthy(channel, timeout_seconds=30)
            reflection = ServerReflectionStub(channel)
            question = ServerReflectionRequest(list_services="")
            [answer] = [a async for a in reflection.ServerReflectionInfo(iter([question]))]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await JobServiceStub(channel).ListJobs(ListJobsRequest())

    names = {service.name for service in answer.list_services_response.service}
    assert {
        "planaria.api.coordinator.v1.JobService",
        "planaria.api.coordinator.v1.ClusterService",
        "planaria.api.coordinator.v1.SchedulerService",
        "planaria.api.worker.v1.WorkerService",
    } <= names
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port"])
def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path, option: str) -> None:
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
def test_a_startup_error_is_reported_in_one_line(
    tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    """No stack trace: the setting, and what would be right."""
    found, error = refusal(tmp_path, *arguments)

    assert found == status
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1


def test_of_two_coordinators_on_one_data_directory_the_second_does_not_start(
    tmp_path: Path,
) -> None:
    """[4] It names the process that has it; the first serves on. Guard: `FileLock`."""
    with run(tmp_path) as first:
        status, words = refusal(tmp_path)
        assert status != 0
        assert f"another coordinator (process {first.process.pid}) uses" in words
        assert first.client.get("/api/v1/jobs").status_code == 200
    with run(tmp_path) as second:
        assert second.client.get("/api/v1/jobs").status_code == 200
