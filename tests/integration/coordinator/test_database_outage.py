"""A database that goes away and comes back: clear errors meanwhile, and nothing lost."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from integration.coordinator.process import SPEC, run
from support.wire import Wire

pytestmark = pytest.mark.integration


@pytest.fixture
def wire(empty_postgresql_url: str) -> Iterator[Wire]:
    address = urlsplit(empty_postgresql_url)
    assert address.hostname is not None
    assert address.port is not None
    made = Wire(address.hostname, address.port)
    yield made
    made.close()


def test_the_coordinator_outlives_its_database(
    tmp_path: Path, wire: Wire, empty_postgresql_url: str, planner_address: str
) -> None:
    """While the database is away every request says so; afterwards everything is there."""
    port = urlsplit(empty_postgresql_url).port
    url = empty_postgresql_url.replace(f":{port}/", f":{wire.port}/")
    options = (f"--planner-addresses={planner_address}", f"--database-url={url}")
    with run(tmp_path, *options) as coordinator:
        client = coordinator.client
        first = client.post("/api/v1/jobs", json={"spec": SPEC, "request_id": "1"})
        assert first.status_code == 201

        wire.cut()
        refused = [
            client.get("/readyz"),
            client.get("/api/v1/jobs"),
            client.post("/api/v1/jobs", json={"spec": SPEC, "request_id": "2"}),
        ]
        health = client.get("/healthz")
        wire.mend()

        assert [part_of(response) for response in refused] == ["database"] * 3
        assert health.status_code == 200
        second = client.post("/api/v1/jobs", json={"spec": SPEC, "request_id": "2"})
        assert second.status_code == 201, second.text
        jobs = client.get("/api/v1/jobs").json()["jobs"]
        assert [job["id"] for job in jobs] == [second.json()["id"], first.json()["id"]]


def part_of(response: httpx.Response) -> str:
    assert response.status_code == 503, response.text
    assert "only-for-this-test" not in response.text
    part: str = response.json()["metadata"]["part"]
    return part
