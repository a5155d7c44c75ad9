"""Errors as RFC 9457 problem+json, from the one table of reasons."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from planaria.errors import InvalidJobError
from planaria_common.errors import ERROR_DOMAIN, ERRORS, ErrorReason, PlanariaError
from planaria_common.logging import get_logger

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = f"https://{ERROR_DOMAIN}/reference/errors/#"


class FieldProblem(BaseModel):
    """What is wrong with one field."""

    field: str = Field(description="The field's path, such as training.steps.")
    message: str = Field(description="What is wrong, and what would be right.")


class Problem(BaseModel):
    """An error, as RFC 9457 describes it."""

    model_config = ConfigDict(title="Problem")

    type: str = Field(description="Where the reason is documented, or about:blank.")
    title: str = Field(description="The kind of problem.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What went wrong, for people.")
    instance: str = Field(description="The path of the request.")
    reason: str | None = Field(
        default=None, description="What went wrong, for programs; none for an unknown path."
    )
    metadata: dict[str, str] | None = Field(
        default=None, description="Every value that appears in `detail`."
    )
    errors: list[FieldProblem] | None = Field(
        default=None, description="Each wrong field, where fields are wrong."
    )


def problem_response(error: PlanariaError, instance: str) -> JSONResponse:
    """Return the response that tells a PlanariaError."""
    entry = ERRORS[error.reason]
    return _respond(
        Problem(
            type=TYPE_PREFIX + error.reason.lower(),
            title=entry.title,
            status=entry.http_status,
            detail=error.message,
            instance=instance,
            reason=error.reason.value,
            metadata=error.metadata,
            errors=_wrong_fields(error)
            if entry.http_status == HTTPStatus.UNPROCESSABLE_ENTITY
            else None,
        )
    )


def _wrong_fields(error: PlanariaError) -> list[FieldProblem] | None:
    """Return every wrong field: of a job file all at once, otherwise the one that is named."""
    if isinstance(error.__cause__, InvalidJobError):
        return [
            FieldProblem(field=problem.field, message=problem.message)
            for problem in error.__cause__.problems
        ]
    field = error.metadata.get("field")
    if field is None:
        return None
    return [FieldProblem(field=field, message=error.message.removeprefix(f"{field}: "))]


def add_problem_handlers(app: FastAPI) -> None:
    """Make every error of the application a problem+json response."""
    app.add_exception_handler(PlanariaError, _planaria_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _defect)


async def _planaria_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PlanariaError)  # noqa: S101 - registered for this class
    return problem_response(error, request.url.path)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class
    problems = [_field_problem(found) for found in error.errors()]
    entry = ERRORS[ErrorReason.INVALID_ARGUMENT]
    detail = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
    return _respond(
        Problem(
            type=TYPE_PREFIX + ErrorReason.INVALID_ARGUMENT.lower(),
            title=entry.title,
            status=entry.http_status,
            detail=detail,
            instance=request.url.path,
            reason=ErrorReason.INVALID_ARGUMENT.value,
            metadata={"field": problems[0].field},
            errors=problems,
        )
    )


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class
    if isinstance(error.__cause__, PlanariaError):  # raised while FastAPI read the body
        return problem_response(error.__cause__, request.url.path)
    phrase = HTTPStatus(error.status_code).phrase
    details = {
        HTTPStatus.BAD_REQUEST: "the body cannot be read as JSON in UTF-8",
        HTTPStatus.NOT_FOUND: f"there is no {request.url.path} on this server",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.url.path} does not take {request.method}",
    }
    detail = details.get(HTTPStatus(error.status_code), str(error.detail))
    problem = Problem(
        type="about:blank",
        title=phrase,
        status=error.status_code,
        detail=detail,
        instance=request.url.path,
    )
    return _respond(problem, headers=dict(error.headers or {}))


async def _defect(request: Request, error: Exception) -> JSONResponse:
    get_logger("http").error("request_failed", path=request.url.path, exc_info=error)
    message = "the coordinator has a defect: its log says more"
    return problem_response(
        PlanariaError(ErrorReason.INTERNAL, message, {"part": "coordinator"}), request.url.path
    )


def _field_problem(found: Mapping[str, Any]) -> FieldProblem:
    if found["type"] == "json_invalid":
        return FieldProblem(field="body", message=f"is not JSON: {found['ctx']['error']}")
    source, *path = found["loc"]
    field = ".".join(str(part) for part in path) or str(source)
    message = found["msg"]
    return FieldProblem(field=field, message=message[:1].lower() + message[1:])


def _respond(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        problem.model_dump(mode="json", exclude_none=True),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=headers,
    )
