"""What the SDK raises: one class per family, the same whether the error came by REST or gRPC.

try:
    client.get_job("job-1")
except planaria.NotFoundError as error:
    print(error.reason, error.metadata)  # JOB_NOT_FOUND {'job_id': 'job-1'}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class PlanariaError(Exception):
    """Something went wrong that one line explains.

    Attributes:
        reason: what, for programs: a name of `planaria.api.common.v1.ErrorReason`.
        message: what, for people.
        metadata: every dynamic value of the message.
    """

    def __init__(
        self, message: str, *, reason: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})


class InvalidArgumentError(PlanariaError):
    """The request itself is wrong: sending it again changes nothing."""


class NotFoundError(PlanariaError):
    """The job, node or scheduler does not exist."""


class ConflictError(PlanariaError):
    """The cluster's present state does not allow the request."""


class AccessError(PlanariaError):
    """The token is missing or wrong."""


class UnavailableError(PlanariaError):
    """No coordinator answers, or a part that it needs is away: trying again later may help."""


class JobFailedError(PlanariaError):
    """A job ended as FAILED or CANCELLED."""


class InternalError(PlanariaError):
    """A defect of Planaria."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProblem:
    """One thing that is wrong with a job file.

    Attributes:
        field: the path of the field, such as `training.optimizer.learning_rate`.
        message: what is wrong and what would be right.
    """

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidJobError(InvalidArgumentError):
    """A job file is not valid.

    Attributes:
        problems: everything that is wrong, in the file's order.
    """

    def __init__(self, problems: Sequence[FieldProblem], *, source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        first = f"{source}: {problems[0]}" if source else str(problems[0])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(first + more, reason="INVALID_JOB", metadata={"field": problems[0].field})


_FAMILY_OF_HTTP_STATUS: Mapping[int, type[PlanariaError]] = {
    400: InvalidArgumentError,
    401: AccessError,
    403: AccessError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    413: InvalidArgumentError,
    422: InvalidArgumentError,
    429: UnavailableError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def from_problem(http_status: int, body: object) -> PlanariaError:
    """Return the exception for an error response.

    Args:
        http_status: the response's status code.
        body: its decoded problem+json, or whatever else answered.
    """
    family = _FAMILY_OF_HTTP_STATUS.get(http_status, InternalError)
    problem: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    reason = str(problem.get("reason") or f"HTTP_{http_status}")
    errors = problem.get("errors") or ()
    if reason == "INVALID_JOB" and errors:
        return InvalidJobError([_field_problem(error) for error in errors])
    message = str(
        problem.get("detail") or problem.get("title") or f"the server answered {http_status}"
    )
    metadata = {str(k): str(v) for k, v in (problem.get("metadata") or {}).items()}
    return family(message, reason=reason, metadata=metadata)


def _field_problem(error: Mapping[str, Any]) -> FieldProblem:
    field = str(error.get("field", ""))
    message = str(error.get("message", "")).removeprefix(f"{field}: ")
    return FieldProblem(field=field, message=message)
