"""Every error over HTTP is problem+json from the one table of reasons."""

import httpx
import pytest
from structlog.testing import capture_logs

from planaria_common.errors import ERRORS, ErrorReason, PlanariaError
from planaria_coordinator.application.jobs.submission import read_job_spec
from unit.coordinator_edge.fakes import FakeCoordinator

MEDIA_TYPE = "application/problem+json"


@pytest.mark.parametrize("reason", ErrorReason)
async def test_every_reason(
    client: httpx.AsyncClient, coordinator: FakeCoordinator, reason: ErrorReason
) -> None:
    """HTTP status and title come from the table; detail and metadata from the error."""
    coordinator.jobs.error = PlanariaError(reason, "something is wrong", {"what": "this"})

    response = await client.get("/api/v1/jobs/job-1")

    assert response.status_code == ERRORS[reason].http_status
    assert response.headers["content-type"] == MEDIA_TYPE
    body = response.json()
    assert body["type"].endswith(f"#{reason.lower()}")
    assert body["title"] == ERRORS[reason].title
    assert body["status"] == response.status_code
    assert body["detail"] == "something is wrong"
    assert body["instance"] == "/api/v1/jobs/job-1"
    assert body["reason"] == reason.value
    assert body["metadata"] == {"what": "this"}


async def test_a_wrong_job_file_names_every_wrong_field(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """422 lists the fields as the job file spells them, so that all can be corrected at once."""
    with pytest.raises(PlanariaError) as invalid:
        read_job_spec({"training": {"steps": 0}, "nam": "x"})
    coordinator.jobs.error = invalid.value

    response = await client.post("/api/v1/jobs", json={"spec": {}})

    assert response.status_code == 422
    errors = {error["field"]: error["message"] for error in response.json()["errors"]}
    assert errors["nam"] == "unknown field; did you mean name?"
    assert errors["training.steps"] == "must be at least 1, not 0"
    assert errors["model"] == "is missing, and has no default"


async def test_a_single_wrong_field_is_listed(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """Also what only the coordinator can see names its field once."""
    coordinator.jobs.error = PlanariaError(
        ErrorReason.INVALID_JOB, "data.path: must not be empty", {"field": "data.path"}
    )

    response = await client.post("/api/v1/jobs", json={"spec": {}})

    assert response.json()["errors"] == [{"field": "data.path", "message": "must not be empty"}]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/api/v1/jobs?page_size=-1", "page_size"),
        ("/api/v1/jobs?page_size=many", "page_size"),
        ("/api/v1/events?after_sequence=-1", "after_sequence"),
    ],
)
async def test_a_wrong_parameter_is_named(client: httpx.AsyncClient, path: str, field: str) -> None:
    """422 names the parameter."""
    response = await client.get(path)

    assert (response.status_code, response.headers["content-type"]) == (422, MEDIA_TYPE)
    body = response.json()
    assert body["reason"] == "INVALID_ARGUMENT"
    assert [error["field"] for error in body["errors"]] == [field]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "spec"),
        ({"spec": 3}, "spec"),
        ({"spec": {}, "dryrun": True}, "dryrun"),
        ([], "body"),
    ],
)
async def test_a_wrong_body_is_named(client: httpx.AsyncClient, body: object, field: str) -> None:
    """422 names the field of the body, unknown ones included."""
    response = await client.post("/api/v1/jobs", json=body)

    assert (response.status_code, response.headers["content-type"]) == (422, MEDIA_TYPE)
    assert [error["field"] for error in response.json()["errors"]] == [field]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b'{"spec": {"name": "\xe9"}}', 400),
        (b'{"spec":' + b"[" * 4000 + b"]" * 4000 + b"}", 400),
        (b'{"spec":{"name":' + b"9" * 5000 + b"}}", 400),
    ],
    ids=["broken", "latin-1", "deep", "long number"],
)
async def test_a_body_that_is_no_json(client: httpx.AsyncClient, body: bytes, status: int) -> None:
    """Broken JSON is one line, too."""
    headers = {"content-type": "application/json"}
    response = await client.post("/api/v1/jobs", content=body, headers=headers)

    assert (response.status_code, response.headers["content-type"]) == (status, MEDIA_TYPE)
    assert "JSON" in response.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/nothing", 404),
        ("GET", "/api/v1/jobs/", 404),
        ("POST", "/api/v1/nothing", 404),
        ("DELETE", "/api/v1/jobs", 405),
        ("PUT", "/api/v1/jobs/job-1", 405),
        ("GET", "/api/v1/nodes/nobody", 404),
    ],
)
async def test_unknown_paths_and_methods(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    """Also what no endpoint answers is problem+json."""
    response = await client.request(method, path)

    assert (response.status_code, response.headers["content-type"]) == (status, MEDIA_TYPE)
    assert response.json()["status"] == status


async def test_a_defect_is_logged_and_not_shown(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """Whoever asks learns that the fault is ours; the trace stays in the log."""
    coordinator.jobs.error = ZeroDivisionError("private")

    with capture_logs() as lines:
        response = await client.get("/api/v1/jobs/job-1")

    assert [line["exc_info"] for line in lines] == [coordinator.jobs.error]
    assert (response.status_code, response.headers["content-type"]) == (500, MEDIA_TYPE)
    assert "private" not in response.text
    assert response.json()["reason"] == "INTERNAL"
