"""Errors every service raises, and the one table that says how each reads on the wire.

An error has a reason (machine-readable, documented in docs/reference/errors.md), a message for a
person, and the message's dynamic values as metadata. Nothing here knows a transport: gRPC codes are
names, so the coordinator's domain may raise these too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, Self

ERROR_DOMAIN = "planaria.dev"
"""`domain` of the google.rpc.ErrorInfo that every error carries over gRPC."""

GrpcCode = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "ABORTED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "UNAVAILABLE",
    "DATA_LOSS",
    "INTERNAL",
]


class ErrorReason(StrEnum):
    """The values of `planaria.api.common.v1.ErrorReason`, without the prefix."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_JOB = "INVALID_JOB"
    INVALID_PROFILE = "INVALID_PROFILE"
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    NODE_NOT_FOUND = "NODE_NOT_FOUND"
    WRONG_STATE = "WRONG_STATE"
    NOT_ENOUGH_NODES = "NOT_ENOUGH_NODES"
    FAULT_TOLERANCE_IMPOSSIBLE = "FAULT_TOLERANCE_IMPOSSIBLE"
    MODEL_DOES_NOT_FIT = "MODEL_DOES_NOT_FIT"
    NOT_ENOUGH_MICROBATCHES = "NOT_ENOUGH_MICROBATCHES"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    ORIGIN_NOT_ALLOWED = "ORIGIN_NOT_ALLOWED"
    VERSION_MISMATCH = "VERSION_MISMATCH"
    NODE_NAME_TAKEN = "NODE_NAME_TAKEN"
    UNAVAILABLE = "UNAVAILABLE"
    STALE_GENERATION = "STALE_GENERATION"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    DATA_UNUSABLE = "DATA_UNUSABLE"
    DATA_MISMATCH = "DATA_MISMATCH"
    ENVIRONMENT_MISMATCH = "ENVIRONMENT_MISMATCH"
    ENGINE_FAILED = "ENGINE_FAILED"
    GRADIENT_OUT_OF_RANGE = "GRADIENT_OUT_OF_RANGE"
    STATE_LOST = "STATE_LOST"
    OUTPUT_FAILED = "OUTPUT_FAILED"
    COPY_FAILED = "COPY_FAILED"
    SCHEDULER_NOT_FOUND = "SCHEDULER_NOT_FOUND"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    INTERNAL = "INTERNAL"
    INIT_UNUSABLE = "INIT_UNUSABLE"
    INIT_MISMATCH = "INIT_MISMATCH"
    CHECKPOINT_FAILED = "CHECKPOINT_FAILED"
    NOT_LEADER = "NOT_LEADER"


class PlanariaError(Exception):
    """An error that the caller can read in one line.

    As `OSError(errno.ENOENT)` is a FileNotFoundError, `PlanariaError(reason, ...)` is an instance
    of the subclass that the table gives the reason: raise this class, catch the families.

    Attributes:
        reason: what went wrong, for programs.
        message: what went wrong, for people: names the part or field, and what would be right.
        metadata: every dynamic value of the message.
    """

    def __new__(
        cls, reason: ErrorReason, message: str, metadata: Mapping[str, str] | None = None
    ) -> Self:
        family = ERRORS[reason].family
        if not issubclass(family, cls):
            raise TypeError(f"{reason} belongs to {family.__name__}, not to {cls.__name__}")
        return super().__new__(family, reason, message, metadata)

    def __init__(
        self, reason: ErrorReason, message: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(reason, message, metadata)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(PlanariaError):
    """The request itself is wrong: sending it again changes nothing."""


class NotFoundError(PlanariaError):
    """The thing named does not exist."""


class ConflictError(PlanariaError):
    """The request is well formed, but the cluster's present state does not allow it."""


class AccessError(PlanariaError):
    """The credential is missing or unknown, or the request came from where it may not."""


class UnavailableError(PlanariaError):
    """A part does not answer, or not in time: trying again later may help."""


class JobFailedError(PlanariaError):
    """A job cannot go on: its data, its engines or its numbers."""


class InternalError(PlanariaError):
    """A defect of ours."""


def invalid(field: str, problem: str, **values: str) -> PlanariaError:
    """Return the error of a request whose field has a problem; `values` are those it names."""
    reason = ErrorReason.INVALID_ARGUMENT
    return PlanariaError(reason, f"{field}: {problem}", {"field": field, **values})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEntry:
    """How a reason reads on every transport."""

    family: type[PlanariaError]
    grpc_code: GrpcCode
    http_status: int
    title: str


def _entry(
    family: type[PlanariaError], grpc_code: GrpcCode, http_status: int, title: str
) -> ErrorEntry:
    return ErrorEntry(family=family, grpc_code=grpc_code, http_status=http_status, title=title)


def _invalid(title: str) -> ErrorEntry:
    return _entry(InvalidArgumentError, "INVALID_ARGUMENT", 422, title)


def _missing(title: str) -> ErrorEntry:
    return _entry(NotFoundError, "NOT_FOUND", 404, title)


def _conflict(title: str, grpc_code: GrpcCode = "FAILED_PRECONDITION") -> ErrorEntry:
    return _entry(ConflictError, grpc_code, 409, title)


def _job_failed(title: str, grpc_code: GrpcCode = "FAILED_PRECONDITION") -> ErrorEntry:
    return _entry(JobFailedError, grpc_code, 409, title)


ERRORS: Mapping[ErrorReason, ErrorEntry] = MappingProxyType(
    {
        ErrorReason.INVALID_ARGUMENT: _invalid("A field of the request is not valid"),
        ErrorReason.INVALID_JOB: _invalid("The job file is not valid"),
        ErrorReason.INVALID_PROFILE: _invalid("The model profile is not valid"),
        ErrorReason.JOB_NOT_FOUND: _missing("No such job"),
        ErrorReason.NODE_NOT_FOUND: _missing("No such node"),
        ErrorReason.WRONG_STATE: _conflict("Not possible in the present state"),
        ErrorReason.NOT_ENOUGH_NODES: _conflict("Not enough nodes"),
        ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE: _conflict("The fault tolerance cannot be met"),
        ErrorReason.MODEL_DOES_NOT_FIT: _conflict("The model does not fit"),
        ErrorReason.NOT_ENOUGH_MICROBATCHES: _invalid("Not enough microbatches in a step"),
        ErrorReason.UNAUTHENTICATED: _entry(
            AccessError, "UNAUTHENTICATED", 401, "The credential is missing or wrong"
        ),
        ErrorReason.ORIGIN_NOT_ALLOWED: _entry(
            AccessError, "PERMISSION_DENIED", 403, "The request came from elsewhere"
        ),
        ErrorReason.VERSION_MISMATCH: _conflict("The two ends speak different versions"),
        ErrorReason.NODE_NAME_TAKEN: _conflict("The node's name is taken", "ALREADY_EXISTS"),
        ErrorReason.UNAVAILABLE: _entry(
            UnavailableError, "UNAVAILABLE", 503, "A part does not answer"
        ),
        ErrorReason.STALE_GENERATION: _conflict("The generation is stale", "ABORTED"),
        ErrorReason.REQUEST_ID_REUSED: _conflict(
            "The request id was used before", "ALREADY_EXISTS"
        ),
        ErrorReason.DATA_UNUSABLE: _job_failed("The data cannot be used"),
        ErrorReason.DATA_MISMATCH: _job_failed("Nodes see different data"),
        ErrorReason.ENVIRONMENT_MISMATCH: _job_failed("Nodes run different environments"),
        ErrorReason.ENGINE_FAILED: _job_failed("An engine failed", "ABORTED"),
        ErrorReason.GRADIENT_OUT_OF_RANGE: _job_failed("A gradient is out of range", "ABORTED"),
        ErrorReason.STATE_LOST: _job_failed("Every replica of a layer is gone", "DATA_LOSS"),
        ErrorReason.OUTPUT_FAILED: _job_failed("The output could not be written", "ABORTED"),
        ErrorReason.COPY_FAILED: _job_failed("A layer could not be copied", "ABORTED"),
        ErrorReason.SCHEDULER_NOT_FOUND: _missing("No such scheduler"),
        ErrorReason.MESSAGE_TOO_LARGE: _entry(
            InvalidArgumentError, "RESOURCE_EXHAUSTED", 413, "The message is too large"
        ),
        ErrorReason.INTERNAL: _entry(InternalError, "INTERNAL", 500, "A defect in Planaria"),
        ErrorReason.INIT_UNUSABLE: _job_failed("The state to start from cannot be used"),
        ErrorReason.INIT_MISMATCH: _job_failed("Nodes see different states to start from"),
        ErrorReason.CHECKPOINT_FAILED: _job_failed("A checkpoint could not be written", "ABORTED"),
        ErrorReason.NOT_LEADER: _entry(
            UnavailableError, "UNAVAILABLE", 503, "Another coordinator serves this database"
        ),
    }
)
