"""Every reason has one meaning on every transport."""

import pickle

import grpc
import pytest

from planaria.api.common.v1 import errors_pb2
from planaria_common.errors import (
    ERRORS,
    ErrorReason,
    InternalError,
    NotFoundError,
    PlanariaError,
)
from planaria_common.grpcwire import decode_error, encode_error, grpc_code

PREFIX = "ERROR_REASON_"


def test_reasons_are_those_of_the_protocol() -> None:
    """A reason that one side knows and the other does not could not be decoded."""
    declared = {name.removeprefix(PREFIX) for name in errors_pb2.ErrorReason.keys()}  # noqa: SIM118
    assert set(ErrorReason.__members__) == declared - {"UNSPECIFIED"}


def test_every_reason_is_in_the_table_once() -> None:
    assert set(ERRORS) == set(ErrorReason)


@pytest.mark.parametrize("reason", ErrorReason)
def test_grpc_code_and_http_status_mean_the_same(reason: ErrorReason) -> None:
    """A caller must not be told to retry on one transport and to give up on the other."""
    statuses = {
        "INVALID_ARGUMENT": {422},
        "RESOURCE_EXHAUSTED": {413},
        "NOT_FOUND": {404},
        "ALREADY_EXISTS": {409},
        "FAILED_PRECONDITION": {409},
        "ABORTED": {409},
        "DATA_LOSS": {409},
        "UNAUTHENTICATED": {401},
        "PERMISSION_DENIED": {403},
        "UNAVAILABLE": {503},
        "INTERNAL": {500},
    }
    entry = ERRORS[reason]
    assert entry.http_status in statuses[entry.grpc_code]
    assert entry.title


@pytest.mark.parametrize("reason", ErrorReason)
def test_an_error_survives_the_wire(reason: ErrorReason) -> None:
    sent = PlanariaError(reason, "layer 3 is too large: 9 of 8 bytes", {"layer": "3"})
    received = decode_error(encode_error(sent))
    assert received is not None
    assert type(received) is type(sent) is ERRORS[reason].family
    assert (received.reason, received.message, received.metadata) == (
        reason,
        sent.message,
        sent.metadata,
    )
    assert grpc_code(sent) is grpc.StatusCode[ERRORS[reason].grpc_code]


def test_raising_the_base_class_raises_the_family() -> None:
    with pytest.raises(NotFoundError, match="no job x") as caught:
        raise PlanariaError(ErrorReason.JOB_NOT_FOUND, "no job x", {"job_id": "x"})
    assert caught.value.metadata == {"job_id": "x"}


def test_a_reason_of_another_family_is_refused() -> None:
    with pytest.raises(TypeError, match="belongs to NotFoundError"):
        InternalError(ErrorReason.JOB_NOT_FOUND, "no job x")


def test_errors_can_cross_processes() -> None:
    error = PlanariaError(ErrorReason.WRONG_STATE, "job j is PAUSED", {"state": "PAUSED"})
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), copy.reason, str(copy), copy.metadata) == (
        type(error),
        error.reason,
        str(error),
        error.metadata,
    )


def test_foreign_details_are_not_mistaken_for_ours() -> None:
    assert decode_error(b"") is None
