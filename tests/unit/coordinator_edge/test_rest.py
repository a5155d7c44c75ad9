"""REST shows the resources as docs/reference/rest.md and the protos describe them."""

import httpx
import pytest
from google.protobuf.descriptor import Descriptor

from planaria import models
from planaria.api.common.v1 import plan_pb2
from planaria.api.coordinator.v1 import resources_pb2
from planaria_common.errors import ErrorReason
from planaria_common.version import PROTOCOL_VERSION
from planaria_coordinator.domain.job.job import JobError
from unit.coordinator_edge.fakes import FakeCoordinator, job

SPEC = {"name": "small", "training": {"steps": 10}}


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (resources_pb2.Job.DESCRIPTOR, models.Job),
        (resources_pb2.JobError.DESCRIPTOR, models.JobError),
        (resources_pb2.Node.DESCRIPTOR, models.Node),
        (resources_pb2.NodeEngine.DESCRIPTOR, models.NodeEngine),
        (resources_pb2.Event.DESCRIPTOR, models.Event),
        (resources_pb2.StepMetrics.DESCRIPTOR, models.StepMetrics),
        (resources_pb2.RecoveryPhase.DESCRIPTOR, models.RecoveryPhase),
        (resources_pb2.Recovery.DESCRIPTOR, models.Recovery),
        (resources_pb2.LogLine.DESCRIPTOR, models.LogLine),
        (plan_pb2.Plan.DESCRIPTOR, models.Plan),
        (plan_pb2.Pipeline.DESCRIPTOR, models.Pipeline),
        (plan_pb2.Stage.DESCRIPTOR, models.Stage),
    ],
)
def test_bodies_have_the_fields_of_the_protos(message: Descriptor, body: type[models.Body]) -> None:
    """Whoever knows the protos knows REST."""
    assert list(body.model_fields) == [field.name for field in message.fields]


@pytest.mark.parametrize(
    ("enum", "prefix", "names"),
    [
        (resources_pb2.JobState.DESCRIPTOR, "JOB_STATE_", models.JobStateName),
        (resources_pb2.NodeState.DESCRIPTOR, "NODE_STATE_", models.NodeStateName),
    ],
)
def test_states_are_those_of_the_protos(enum, prefix, names) -> None:  # type: ignore[no-untyped-def]
    """Every state of the protos has its name in REST, without the prefix."""
    values = {value.name.removeprefix(prefix) for value in enum.values} - {"UNSPECIFIED"}
    assert values == set(names)


async def test_a_job_reads_as_documented(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """Enums without prefix, times in RFC 3339, null for what is absent."""
    coordinator.jobs.stored["job-1"] = job(
        error=JobError(reason=ErrorReason.STATE_LOST, message="layer 3 is gone")
    )

    body = (await client.get("/api/v1/jobs/job-1")).json()

    assert body["state"] == "RUNNING"
    assert body["create_time"] == "2026-01-01T12:00:00.000000Z"
    assert body["goodput"] is None
    assert body["end_time"] is None
    assert body["error"] == {"reason": "STATE_LOST", "message": "layer 3 is gone"}
    assert body["time_seconds"] == {"productive": 4.0}


async def test_submitting_a_job(client: httpx.AsyncClient, coordinator: FakeCoordinator) -> None:
    """201, the job, and where it is from now on."""
    response = await client.post(
        "/api/v1/jobs", json={"spec": SPEC, "request_id": "r1", "resume_job_id": "job-1"}
    )

    assert response.status_code == 201
    assert response.headers["location"] == "/api/v1/jobs/job-2"
    assert response.json()["id"] == "job-2"
    assert coordinator.jobs.created == [(SPEC, "r1", False, "job-1")]


async def test_a_dry_run_returns_the_plan(
    client: httpx.AsyncClient, coordinator: FakeCoordinator
) -> None:
    """200 with the plan; no Location, since nothing was made."""
    response = await client.post("/api/v1/jobs", json={"spec": SPEC, "dry_run": True})

    assert response.status_code == 200
    assert "location" not in response.headers
    body = response.json()
    assert body["plan"]["pipelines"][0]["stages"][1] == {
        "first_layer": 3,
        "num_layers": 2,
        "node_index": 1,
        "node_id": "b",
        "accelerators": [0],
    }
    assert body["job"]["state"] == "PENDING"
    assert body["reason"] == "the fastest"


@pytest.mark.parametrize(
    ("verb", "state"), [("cancel", "CANCELLED"), ("pause", "PAUSED"), ("resume", "RUNNING")]
)
@pytest.mark.parametrize("body", [None, {"request_id": "r2"}, {}])
async def test_changing_a_job(
    client: httpx.AsyncClient,
    coordinator: FakeCoordinator,
    verb: str,
    state: str,
    body: dict[str, str] | None,
) -> None:
    """Custom verbs take a request id or nothing, and return the job as it is then."""
    response = await client.post(f"/api/v1/jobs/job-1:{verb}", json=body)

    assert (response.status_code, response.json()["state"]) == (200, state)
    assert coordinator.jobs.changes == [(verb, "job-1", (body or {}).get("request_id", ""))]


@pytest.mark.parametrize(
    ("verb", "state"),
    [("cordon", "CORDONED"), ("uncordon", "READY"), ("drain", "DRAINING"), ("evict", "LOST")],
)
async def test_changing_a_node(
    client: httpx.AsyncClient, coordinator: FakeCoordinator, verb: str, state: str
) -> None:
    """Custom verbs of nodes return the node as it is then."""
    response = await client.post(f"/api/v1/nodes/a:{verb}", json={"request_id": "r3"})

    assert (response.status_code, response.json()["state"]) == (200, state)
    assert coordinator.cluster.changes == [(verb, "a", "r3")]


async def test_removing_a_node(client: httpx.AsyncClient, coordinator: FakeCoordinator) -> None:
    """204 without a body; then the node is unknown."""
    response = await client.delete("/api/v1/nodes/b")

    assert (response.status_code, response.content) == (204, b"")
    assert (await client.get("/api/v1/nodes/b")).status_code == 404


@pytest.mark.parametrize(
    ("path", "name", "num_items"),
    [
        ("/api/v1/jobs", "jobs", 1),
        ("/api/v1/nodes", "nodes", 2),
        ("/api/v1/events", "events", 3),
        ("/api/v1/jobs/job-1/events", "events", 2),
        ("/api/v1/jobs/job-1/metrics", "metrics", 3),
        ("/api/v1/jobs/job-1/recoveries", "recoveries", 1),
        ("/api/v1/jobs/job-1/logs", "lines", 1),
    ],
)
async def test_lists(client: httpx.AsyncClient, path: str, name: str, num_items: int) -> None:
    """A list is an object with the items and the next page's token, empty at the end."""
    body = (await client.get(path)).json()

    assert set(body) == {name, "next_page_token"}
    assert len(body[name]) == num_items
    assert body["next_page_token"] == ""


async def test_pages_join_up(client: httpx.AsyncClient) -> None:
    """Following next_page_token shows every item once."""
    steps, token = [], ""
    while True:
        page = (
            await client.get(
                "/api/v1/jobs/job-1/metrics", params={"page_size": 2, "page_token": token}
            )
        ).json()
        steps += [metrics["step"] for metrics in page["metrics"]]
        token = page["next_page_token"]
        if not token:
            break

    assert steps == [0, 1, 2]


async def test_events_after_a_sequence(client: httpx.AsyncClient) -> None:
    """Polling from the last event seen shows only newer ones."""
    body = (await client.get("/api/v1/events", params={"after_sequence": 2})).json()

    assert [event["sequence"] for event in body["events"]] == [3]


async def test_a_plan_reads_with_its_reason(client: httpx.AsyncClient) -> None:
    """The plan, its generation, and why."""
    body = (await client.get("/api/v1/jobs/job-1/plan")).json()

    assert (body["generation"], body["reason"]) == (2, "fastest")
    assert body["plan"]["idle_node_ids"] == ["c"]


async def test_info_names_the_endpoints(client: httpx.AsyncClient) -> None:
    """Whoever knows the HTTP address finds everything else."""
    assert (await client.get("/api/v1/info")).json() == {
        "version": "0.1.0",
        "protocol_version": PROTOCOL_VERSION,
        "grpc_endpoints": ["127.0.0.1:50051"],
        "http_url": "http://127.0.0.1:8080",
    }
