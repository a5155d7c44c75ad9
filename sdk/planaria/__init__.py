"""What users import and type: the client library and the command line."""

from typing import TYPE_CHECKING, Any

from planaria.errors import (
    AccessError,
    ConflictError,
    InternalError,
    InvalidArgumentError,
    InvalidJobError,
    JobFailedError,
    NotFoundError,
    PlanariaError,
    UnavailableError,
)
from planaria.job import JobSpec
from planaria.job_file import load_job_file

if TYPE_CHECKING:
    from planaria.client import Client

__all__ = [
    "AccessError",
    "Client",
    "ConflictError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidJobError",
    "JobFailedError",
    "JobSpec",
    "NotFoundError",
    "PlanariaError",
    "UnavailableError",
    "load_job_file",
]


def __getattr__(name: str) -> Any:
    # Services import the generated code in this package: they should not load an HTTP client.
    if name == "Client":
        from planaria.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
