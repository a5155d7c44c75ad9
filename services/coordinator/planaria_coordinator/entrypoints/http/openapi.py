"""The OpenAPI description: FastAPI's, with problem+json as every operation's error."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from planaria_coordinator.entrypoints.http.problems import MEDIA_TYPE, Problem

_REFERENCE: Final = "#/components/schemas/"
ERROR_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "description": "An error, as RFC 9457 describes it.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"{_REFERENCE}Problem"}}},
    }
}
_TOKEN: Final = "token"  # noqa: S105 - the name of a scheme


def describe_errors_and_token(app: FastAPI) -> None:
    """Replace the application's OpenAPI description by one that names its errors and token."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    components = document.setdefault("components", {})
    schema = Problem.model_json_schema(ref_template=f"{_REFERENCE}{{model}}")
    nested = schema.pop("$defs", {})
    components.setdefault("schemas", {}).update({"Problem": schema, **nested})
    components["securitySchemes"] = {
        _TOKEN: {
            "type": "http",
            "scheme": "bearer",
            "description": "The cluster's token: every change needs it; reading does, too, "
            "unless the server listens on loopback only.",
        }
    }
    for path in document["paths"].values():
        for method, operation in path.items():
            needed: list[dict[str, list[str]]] = [{_TOKEN: []}]
            operation["security"] = needed if method != "get" else [{}, *needed]
    return document
