"""The HTTP application: REST, server-sent events, probes, metrics and the page."""

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from planaria_common.version import package_version
from planaria_coordinator.entrypoints.http import events, jobs, nodes, server_facts
from planaria_coordinator.entrypoints.http.dependencies import Provided
from planaria_coordinator.entrypoints.http.openapi import (
    ERROR_RESPONSES,
    describe_errors_and_token,
)
from planaria_coordinator.entrypoints.http.page import add_page
from planaria_coordinator.entrypoints.http.problems import add_problem_handlers
from planaria_coordinator.entrypoints.http.security import AccessMiddleware, AccessRules

_ROUTERS: Final = (jobs.router, nodes.router, events.router, server_facts.router)


def create_app(provided: Provided, *, rules: AccessRules, web_dir: Path | None) -> FastAPI:
    """Build the application.

    Args:
        provided: what the endpoints work with.
        rules: which requests are answered.
        web_dir: the built page; None for none.
    """
    app = describe_api()
    app.state.provided = provided
    app.add_middleware(AccessMiddleware, rules=rules)
    add_page(app, web_dir)
    return app


def describe_api() -> FastAPI:
    """Return the routes alone: what the OpenAPI description is made of."""
    app = FastAPI(
        title="Planaria",
        version=package_version(),
        description="Jobs, nodes and events of a Planaria cluster.",
        generate_unique_id_function=_operation_id,
        responses=ERROR_RESPONSES,
        redirect_slashes=False,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
    )
    for router in _ROUTERS:
        app.include_router(router)
    add_problem_handlers(app)
    describe_errors_and_token(app)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
