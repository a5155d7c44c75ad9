"""Probes, metrics and the page."""

import asyncio
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator_edge.conftest import build_app, client_of
from unit.coordinator_edge.fakes import FakeCoordinator, job, node


async def test_readiness_names_the_part_that_is_away(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """503 with the part; health stays, since restarting this process would not help."""
    assert (await client.get("/readyz")).status_code == 200
    coordinator.not_ready = PlanariaError(
        ErrorReason.UNAVAILABLE, "no planner answers", {"part": "planner"}
    )

    response = await client.get("/readyz")

    assert response.status_code == 503
    assert response.json()["metadata"] == {"part": "planner"}
    assert (await client.get("/healthz")).status_code == 200


async def test_a_stopping_server_is_not_ready(coordinator: FakeCoordinator) -> None:
    """Load balancers stop sending calls before the server is gone."""
    stopping = asyncio.Event()
    async with client_of(build_app(coordinator, stopping=stopping)) as client:
        stopping.set()
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200


def samples_in(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("planaria_coordinator_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_tell_of_every_node_and_of_every_job_that_has_not_ended(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """However many there are."""
    coordinator.cluster.stored = {f"n{number}": node(f"n{number}") for number in range(1500)}
    coordinator.jobs.stored = {
        **{f"ended-{n}": job(f"ended-{n}", state=JobState.SUCCEEDED) for n in range(1000)},
        "job-1": job(),
    }
    samples = samples_in((await client.get("/metrics")).text)
    assert samples["nodes", "READY"] == 1500
    assert [key[1] for key in samples if key[0] == "job_step"] == ["job-1"]


async def test_metrics(client: httpx.AsyncClient, coordinator: FakeCoordinator) -> None:
    """Prometheus can parse them; they tell of jobs, nodes, heartbeats and recoveries."""
    response = await client.get("/metrics")

    samples = samples_in(response.text)
    assert response.headers["content-type"].startswith("text/plain")
    assert samples["jobs", "RUNNING"] == 1
    assert samples["jobs", "FAILED"] == 0
    assert samples["nodes", "READY"] == 1
    assert samples["nodes", "LOST"] == 1
    assert samples["heartbeat_age_seconds", "a"] == 2.0
    assert samples["recoveries_total", "node_lost"] == 2
    assert samples["recovery_resume_seconds_total", "node_lost"] == 0.5
    assert samples["recovery_lost_seconds_total", "node_lost"] == 1.5
    assert samples["job_step", "job-1"] == 3
    assert samples["job_tokens_per_second", "job-1"] == 100.0
    assert samples["events_total",] == 3


@pytest.fixture
def web_dir(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<title>Planaria</title>")
    (tmp_path / "assets" / "app-1a2b.js").write_text("let x = 1")
    return tmp_path


@pytest.mark.parametrize("path", ["/", "/jobs/job-1", "/nodes", "/index.html"])
async def test_the_page_answers_for_all_its_views(
    coordinator: FakeCoordinator, web_dir: Path, path: str
) -> None:
    """Reloading any view shows the page, and always the newest one."""
    async with client_of(build_app(coordinator, web_dir=web_dir), token=None) as client:
        response = await client.get(path)

    assert response.status_code == 200
    assert "Planaria" in response.text
    assert response.headers["cache-control"] == "no-cache"
    assert "default-src 'self'" in response.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/assets/app-1a2b.js", 200),
        ("GET", "/assets/gone.js", 404),
        ("GET", "/api/v1/nothing", 404),
        ("POST", "/api/v1/nothing", 404),
        ("DELETE", "/api/v1/jobs", 405),
        ("GET", "/../pyproject.toml", 404),
        ("GET", "/api/v1/jobs", 200),
    ],
)
async def test_the_page_hides_nothing(
    coordinator: FakeCoordinator, web_dir: Path, method: str, path: str, status: int
) -> None:
    """Files that are missing and unknown paths of the API stay errors."""
    async with client_of(build_app(coordinator, web_dir=web_dir)) as client:
        assert (await client.request(method, path)).status_code == status


async def test_without_a_page_the_server_says_how_to_get_one(
    client: httpx.AsyncClient,
) -> None:
    """The command and the setting, in words."""
    response = await client.get("/")

    assert response.status_code == 404
    assert "make web" in response.text
    assert "PLANARIA_COORDINATOR_WEB_DIR" in response.text
