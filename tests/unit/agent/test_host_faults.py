"""Which errors come from what a machine lacks at the moment."""

import errno

import pytest

from planaria_worker.agent.host_faults import is_host_fault
from planaria_worker.engine.data.errors import DataError


def raised_from(cause: Exception) -> Exception:
    try:
        try:
            raise cause
        except Exception as error:
            raise DataError("cannot make the token file") from error
    except DataError as error:
        return error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EROFS])
def test_what_may_be_there_again_later_passes(number: int) -> None:
    assert is_host_fault(OSError(number, "lacking"))
    assert is_host_fault(raised_from(OSError(number, "lacking")))
    assert is_host_fault(raised_from(MemoryError()))


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(errno.ENOENT, "no such file"), PermissionError(13, "no"), ValueError()],
)
def test_what_is_wrong_with_the_job_does_not(error: Exception) -> None:
    assert not is_host_fault(error)
    assert not is_host_fault(raised_from(error))
