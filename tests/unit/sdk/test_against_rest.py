"""The client library against the coordinator's real REST interface: both sides mean the same."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import planaria
from planaria import load_job_file
from planaria.aio import AsyncClient
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.version import PROTOCOL_VERSION
from unit.coordinator_edge.conftest import TOKEN, build_app
from unit.coordinator_edge.fakes import FakeCoordinator

URL = "http://localhost:8080"


@pytest.fixture
def cluster() -> FakeCoordinator:
    return FakeCoordinator()


@pytest.fixture
async def client(cluster: FakeCoordinator) -> AsyncIterator[AsyncClient]:
    transport = httpx.ASGITransport(build_app(cluster))
    async with AsyncClient(URL, token=TOKEN, transport=transport) as client:
        yield client


async def test_jobs(client: AsyncClient, cluster: FakeCoordinator, job_file: Path) -> None:
    spec = load_job_file(job_file)
    submitted = await client.submit(spec, request_id="once", resume_job_id="job-1")
    assert (submitted.id, submitted.state, submitted.spec) == (
        "job-2",
        "PENDING",
        spec.to_document(),
    )
    assert cluster.jobs.created == [(spec.to_document(), "once", False, "job-1")]
    assert [job.id for job in await client.list_jobs()] == ["job-1"]
    assert (await client.get_job("job-1")).loss is not None
    assert (await client.pause_job("job-1")).state == "PAUSED"
    assert (await client.resume_job("job-1")).state == "RUNNING"
    assert (await client.cancel_job("job-1")).is_done
    assert [verb for verb, *_ in cluster.jobs.changes] == ["pause", "resume", "cancel"]
    assert all(request_id for *_, request_id in cluster.jobs.changes)


async def test_a_dry_run_has_a_plan(client: AsyncClient, job_file: Path) -> None:
    planned = await client.plan(load_job_file(job_file))
    assert planned.plan is not None
    assert planned.plan.pipelines[0].stages


async def test_plan_steps_and_recoveries_of_a_job_are_read(client: AsyncClient) -> None:
    answer = await client.job_plan("job-1")
    assert answer.generation == 2
    assert answer.plan is not None
    assert answer.plan.pipelines[0].stages[0].node_id
    assert [metrics.step for metrics in await client.job_metrics("job-1")] == [0, 1, 2]
    [recovery] = await client.job_recoveries("job-1")
    assert recovery.phases
    assert [line.text for line in await client.job_logs("job-1")] == ["hello"]
    events = client.events(job_id="job-1", after_sequence=1)
    assert [event.sequence async for event in events] == [3]


async def test_nodes(client: AsyncClient, cluster: FakeCoordinator) -> None:
    first, second = await client.list_nodes()
    assert (first.id, second.state) == ("a", "LOST")
    assert first.engines[0].pid
    assert (await client.cordon_node("a")).state == "CORDONED"
    assert (await client.drain_node("a")).state == "DRAINING"
    assert (await client.uncordon_node("a")).state == (await client.get_node("a")).state
    await client.remove_node("b")
    assert list(cluster.cluster.stored) == ["a"]


async def test_the_cluster_names_its_endpoints(client: AsyncClient) -> None:
    info = await client.info()
    assert info.grpc_endpoints == ("127.0.0.1:50051",)
    assert info.protocol_version == PROTOCOL_VERSION


async def test_errors_keep_reason_and_metadata(
    client: AsyncClient, cluster: FakeCoordinator, job_file: Path
) -> None:
    with pytest.raises(planaria.NotFoundError) as missing:
        await client.get_job("job-9")
    assert (missing.value.reason, missing.value.metadata) == ("JOB_NOT_FOUND", {"job_id": "job-9"})
    cluster.jobs.error = PlanariaError(
        ErrorReason.INVALID_JOB, "data.path: must not be empty", {"field": "data.path"}
    )
    with pytest.raises(planaria.InvalidJobError, match=r"^data\.path: must not be empty$"):
        await client.submit(load_job_file(job_file))


async def test_a_change_needs_the_token(cluster: FakeCoordinator) -> None:
    transport = httpx.ASGITransport(build_app(cluster))
    async with AsyncClient(URL, token="wrong", transport=transport) as client:
        with pytest.raises(planaria.AccessError, match="token"):
            await client.cancel_job("job-1")
