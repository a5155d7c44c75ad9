"""What every HTTP request has to pass: Host, Origin, size and token, before anything reads it."""

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.entrypoints.http.problems import problem_response

READING_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_GUARDED_PREFIXES: Final = ("/api/", "/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Which requests are answered.

    Attributes:
        token: what every change must carry.
        reads_need_token: whether reading does, too: where other machines can connect.
        hosts: host names that requests may use, without ports, in lower case.
        origins: origins of pages that may call, besides the server's own.
        max_body_bytes: the largest body.
    """

    token: str
    reads_need_token: bool
    hosts: Collection[str]
    origins: Collection[str]
    max_body_bytes: int

    def check(self, *, method: str, path: str, headers: Headers) -> None:
        """Refuse what must not be answered.

        Raises:
            AccessError: the host, the origin or the token is not accepted.
            InvalidArgumentError: the body is declared larger than the limit.
        """
        self._check_host(headers.get("host", ""))
        self._check_origin(headers.get("origin"), headers.get("host", ""))
        self._check_length(headers.get("content-length"))
        if method not in READING_METHODS or (
            self.reads_need_token and path.startswith(_GUARDED_PREFIXES)
        ):
            self._check_token(headers.get("authorization"))

    def _check_host(self, host: str) -> None:
        if _host_name(host) not in self.hosts:
            raise PlanariaError(
                ErrorReason.ORIGIN_NOT_ALLOWED,
                f"this server does not answer to the host name {host!r}: "
                "add it to PLANARIA_COORDINATOR_ALLOWED_HOSTS",
                {"host": host},
            )

    def _check_origin(self, origin: str | None, host: str) -> None:
        own = {f"http://{host}".lower(), f"https://{host}".lower()}
        if origin is not None and origin.lower() not in {*own, *self.origins}:
            raise PlanariaError(
                ErrorReason.ORIGIN_NOT_ALLOWED,
                f"pages of {origin} may not call this server: "
                "add the origin to PLANARIA_COORDINATOR_ALLOWED_ORIGINS",
                {"origin": origin},
            )

    def _check_length(self, declared: str | None) -> None:
        if declared is not None and declared.isdecimal() and int(declared) > self.max_body_bytes:
            raise self.too_large(int(declared))

    def _check_token(self, given: str | None) -> None:
        expected = f"Bearer {self.token}"
        if given is None or not hmac.compare_digest(given.encode(), expected.encode()):
            raise PlanariaError(
                ErrorReason.UNAUTHENTICATED,
                "the token is wrong: use the one in the cluster's token file"
                if given
                else "a token is needed: send `Authorization: Bearer TOKEN`",
            )

    def too_large(self, num_bytes: int) -> PlanariaError:
        """Return the error that refuses a body of so many bytes, or more."""
        return PlanariaError(
            ErrorReason.MESSAGE_TOO_LARGE,
            f"the body has {num_bytes} bytes, the limit is {self.max_body_bytes}",
            {"bytes": str(num_bytes), "limit_bytes": str(self.max_body_bytes)},
        )


def _host_name(host: str) -> str:
    """Return a Host header without its port, in lower case: `[::1]:80` -> `[::1]`."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() and name else host).lower()


class AccessMiddleware:
    """Applies AccessRules to every request, and keeps count of bodies without a length."""

    def __init__(self, app: ASGIApp, *, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._rules.check(
                method=scope["method"], path=scope["path"], headers=Headers(scope=scope)
            )
        except PlanariaError as error:
            await self._refuse(error, scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._rules.max_body_bytes:
                raise self._rules.too_large(received)
            return message

        return limited

    @staticmethod
    async def _refuse(error: PlanariaError, scope: Scope, receive: Receive, send: Send) -> None:
        response = problem_response(error, scope["path"])
        if error.reason is ErrorReason.UNAUTHENTICATED:
            response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)
