"""The committed OpenAPI file is what the code says, and the code does what the file says."""

import json
from pathlib import Path
from typing import Any

import pytest

from planaria_coordinator.entrypoints.http.app import describe_api

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT: dict[str, Any] = describe_api().openapi()
OPERATIONS = [
    (method, path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]


def test_the_committed_file_is_up_to_date() -> None:
    """Clients are generated from the file: `make openapi` keeps it true."""
    committed = json.loads((ROOT / "services/coordinator/openapi.json").read_text())

    assert committed == json.loads(json.dumps(DOCUMENT))


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_every_operation_is_complete(method: str, path: str, operation: dict[str, Any]) -> None:
    """Each has an id in snake_case, a description, and problem+json as its error."""
    assert operation["operationId"].islower()
    assert operation["description"]
    assert list(operation["responses"]["default"]["content"]) == ["application/problem+json"]
    assert "422" not in operation["responses"]
    assert ({} in operation["security"]) == (method == "get")


def test_operation_ids_are_the_documented_ones() -> None:
    """Generated clients have methods of these names."""
    ids = {operation["operationId"] for _, _, operation in OPERATIONS}

    assert {"list_nodes", "pause_job", "create_job", "drain_node", "list_events"} <= ids
    assert len(ids) == len(OPERATIONS)
