"""What a server raises, its client raises too."""

import pytest

from planaria.errors import from_problem
from planaria_common.errors import ERRORS, ErrorReason, JobFailedError

REQUEST_REASONS = [reason for reason in ErrorReason if ERRORS[reason].family is not JobFailedError]
"""Reasons that a request can fail with; the others are why a job failed."""


@pytest.mark.parametrize("reason", REQUEST_REASONS)
def test_the_client_raises_the_family_of_the_reason(reason: ErrorReason) -> None:
    entry = ERRORS[reason]
    body = {"reason": reason.value, "detail": "a sentence", "metadata": {"part": "tester"}}
    error = from_problem(entry.http_status, body)
    assert type(error).__name__ == entry.family.__name__
    assert (error.reason, error.message, error.metadata) == (reason, "a sentence", body["metadata"])
