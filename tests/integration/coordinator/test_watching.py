"""Watchers go on where a coordinator that was killed has left them, on real processes."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from benchmarks.common.ports import free_port
from integration.coordinator.process import SPEC, run
from planaria import Client
from planaria.api.coordinator.v1.job_service_pb2 import WatchJobRequest
from planaria.api.coordinator.v1.job_service_pb2_grpc import JobServiceStub

pytestmark = pytest.mark.integration


def watch_job(address: str, token: str, job_id: str) -> list[int]:
    """Return the sequences of a job's events, watched until it has ended, whoever answers."""
    seen: list[int] = []
    position, has_ended = 0, False
    metadata = (("authorization", f"Bearer {token}"),)
    while not has_ended:
        request = WatchJobRequest(job_id=job_id, after_sequence=position)
        with grpc.insecure_channel(address) as channel:
            try:
                for view in JobServiceStub(channel).WatchJob(request, metadata=metadata):
                    seen += [event.sequence for event in view.events]
                    position = view.sequence
                has_ended = True
            except grpc.RpcError:
                time.sleep(0.1)
    return seen


def follow(url: str, token: str, job_id: str) -> list[int]:
    """Return the same from server-sent events, as the SDK reads them."""
    seen = []
    with Client(url, token=token, reconnect_attempts=200) as client:
        for event in client.events(job_id=job_id, follow=True):
            seen.append(event.sequence)
            if event.type == "job_cancelled":
                break
    return seen


@pytest.mark.slow
def test_watchers_miss_nothing_and_get_nothing_twice(tmp_path: Path, planner_address: str) -> None:
    """A coordinator is killed twice while a job is watched in both ways."""
    http_port, grpc_port = free_port(), free_port()
    options = [f"--http-port={http_port}", f"--grpc-port={grpc_port}"]
    options.append(f"--planner-addresses={planner_address}")
    with ThreadPoolExecutor() as pool:
        with run(tmp_path, *options) as coordinator:
            job_id = coordinator.client.post("/api/v1/jobs", json={"spec": SPEC}).json()["id"]
            token = (tmp_path / "token").read_text().strip()
            by_grpc = pool.submit(watch_job, f"127.0.0.1:{grpc_port}", token, job_id)
            by_sse = pool.submit(follow, f"http://127.0.0.1:{http_port}", token, job_id)
            coordinator.client.post(f"/api/v1/jobs/{job_id}:pause").raise_for_status()
            coordinator.process.kill()
        with run(tmp_path, *options) as coordinator:
            coordinator.client.post(f"/api/v1/jobs/{job_id}:resume").raise_for_status()
            coordinator.process.kill()
        with run(tmp_path, *options) as coordinator:
            coordinator.client.post(f"/api/v1/jobs/{job_id}:cancel").raise_for_status()
            path = f"/api/v1/jobs/{job_id}/events"
            events = coordinator.client.get(path).json()["events"]
            ahead = coordinator.client.get(
                path, params={"after_sequence": 99}, headers={"accept": "text/event-stream"}
            )
            seen_by_grpc, seen_by_sse = by_grpc.result(60), by_sse.result(60)

    expected = [event["sequence"] for event in events]
    assert len(expected) >= 4
    assert seen_by_grpc == expected
    assert seen_by_sse == expected
    newest = int(ahead.json()["metadata"]["newest"])
    assert (ahead.status_code, ahead.json()["reason"]) == (422, "INVALID_ARGUMENT")
    assert f"after_sequence is 99, must be at most {newest}" in ahead.json()["detail"]
