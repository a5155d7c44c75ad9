"""What users import and type: the client library and the command line."""

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

__all__ = [
    "AccessError",
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
