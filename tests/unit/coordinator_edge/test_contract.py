"""Whatever a client sends, the answer is one that the OpenAPI description announces."""

import asyncio
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
)

from unit.coordinator_edge.conftest import TOKEN, build_app
from unit.coordinator_edge.fakes import FakeCoordinator

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


def _schema() -> schemathesis.BaseSchema:
    stopping = asyncio.Event()
    stopping.set()  # event streams end at once; /readyz would rightly be 503
    app = build_app(FakeCoordinator(), stopping=stopping)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"host": "localhost"})
    return schema.exclude(path="/readyz")


SCHEMA = _schema()


@SCHEMA.parametrize()
@settings(
    max_examples=15,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_answers_follow_the_description(case: schemathesis.Case[Any]) -> None:
    """No input, however odd, gets an undocumented answer or an internal error."""
    headers = {"host": "localhost", "authorization": f"Bearer {TOKEN}"}
    case.call_and_validate(headers=headers, checks=CHECKS)
