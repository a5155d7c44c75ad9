"""Where the coordinator is, and how its answers become values or exceptions."""

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from planaria._calls import Call
from planaria.errors import (
    AccessError,
    ConflictError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    from_problem,
)
from planaria.local import state as local_state

T = TypeVar("T")

DEFAULT_ADDRESS = "http://127.0.0.1:8080"
API_PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The coordinator's URL and the token for it.

    Attributes:
        is_guess: nobody named the address, and no cluster was found on this machine.
    """

    address: str
    token: str | None
    is_guess: bool = False

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.address).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def options(self) -> dict[str, Any]:
        """Return the arguments that both kinds of httpx client are made with."""
        return {
            "base_url": self.address,
            "headers": self.headers(),
            # A proxy from the environment cannot reach this machine's own ports.
            "trust_env": not self.is_loopback,
        }

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise UnavailableError for a coordinator that cannot be reached or was only guessed."""
        try:
            yield
        except httpx.TransportError as error:
            raise unreachable(self.address, error) from error
        except AccessError as error:
            if self.token or not self.is_guess:
                raise
            raise UnavailableError(
                "no cluster of yours was found: start one with `planaria up` or set "
                f"--address/PLANARIA_ADDRESS (what answers at {self.address} needs a token)",
                reason="UNAVAILABLE",
                metadata={"address": self.address},
            ) from error


def resolve(address: str | None = None, token: str | None = None) -> Connection:
    """Find the coordinator: as given, else PLANARIA_ADDRESS, else what `up` started here.

    The token likewise: as given, else PLANARIA_TOKEN, else that of the cluster on this machine
    when the address is its address.

    Raises:
        InvalidArgumentError: the address is not an HTTP URL.
    """
    cluster = local_state.find()
    local_address = cluster.http_url if cluster else DEFAULT_ADDRESS
    named = address or os.environ.get("PLANARIA_ADDRESS")
    found = (named or local_address).rstrip("/")
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidArgumentError(
            f"--address {found}: must be a URL such as {DEFAULT_ADDRESS}",
            reason="INVALID_ARGUMENT",
            metadata={"option": "--address", "value": found},
        )
    token = token or os.environ.get("PLANARIA_TOKEN")
    if not token and cluster and found == cluster.http_url:
        token = _read_token(Path(cluster.token_file))
    return Connection(address=found, token=token, is_guess=not named and cluster is None)


def _read_token(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except OSError:
        return None


def body_of(response: httpx.Response) -> Any:
    """Return the decoded body of an answer.

    Raises:
        PlanariaError: the answer is an error, or not from a coordinator.
    """
    body = _json_or_none(response)
    if response.is_error or response.is_redirect:
        raise from_problem(response.status_code, body)
    if body is None and response.status_code != httpx.codes.NO_CONTENT:
        raise InternalError(
            f"what answers at {response.url} is not a Planaria coordinator",
            reason="INTERNAL",
            metadata={"url": str(response.url)},
        )
    return body


def _json_or_none(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def read(call: Call[T], body: Any) -> T:
    """Turn a body into the call's result.

    Raises:
        ConflictError: the body has another shape, because the two ends differ in version.
    """
    try:
        return call.read(body)
    except (ValidationError, KeyError, TypeError) as error:
        raise _not_understood(call, str(error).splitlines()[0]) from error


def merge_page(call: Call[Any], whole: dict[str, Any] | None, page: Any) -> dict[str, Any]:
    """Add a page of a list to the pages before it.

    Raises:
        ConflictError: it is not a page of this list.
    """
    if not isinstance(page, dict) or call.list_key not in page:
        raise _not_understood(call, f"{call.list_key} is missing")
    items = [*(whole[call.list_key] if whole else ()), *page[call.list_key]]
    return {**page, call.list_key: items}


def _not_understood(call: Call[Any], detail: str) -> ConflictError:
    return ConflictError(
        f"the answer to {call.method} {call.path} is not understood ({detail}): "
        "`planaria version` shows whether client and coordinator differ",
        reason="VERSION_MISMATCH",
    )


def unreachable(address: str, error: httpx.TransportError) -> UnavailableError:
    """Return the error for a coordinator that did not answer."""
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        message = f"the coordinator at {address} did not answer in time"
    elif isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        message = (
            f"no coordinator answers at {address}: "
            "start one with `planaria up` or set --address/PLANARIA_ADDRESS"
        )
    else:
        message = f"the coordinator at {address} broke off the connection ({error})"
    return UnavailableError(message, reason="UNAVAILABLE", metadata={"address": address})
