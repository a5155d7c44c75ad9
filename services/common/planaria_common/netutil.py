"""Ports and addresses: say clearly what cannot be listened on, and never expose an open port."""

import errno
import ipaddress
import socket

from planaria_common.errors import ErrorReason, PlanariaError


def is_loopback(host: str) -> bool:
    """Tell whether listening on `host` reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_credentials_beyond_loopback(host: str, token: str | None, *, flag: str) -> None:
    """Refuse to listen where other machines can connect without a token.

    Raises:
        InvalidArgumentError: `host` is not loopback and there is no token.
    """
    if not is_loopback(host) and not token:
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            f"{flag} {host}: other machines can reach this address, so a token is needed; "
            "set one, or listen on 127.0.0.1",
            {"field": flag, "host": host},
        )


def require_free_port(host: str, port: int, *, flag: str) -> None:
    """Check that a server could listen on the port now; 0 always can.

    Raises:
        InvalidArgumentError: the port is in use, needs privileges, or the address is not of this
            machine; names `flag`, which chooses another.
    """
    if not port:
        return
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # Without it, a server stopped a moment ago would still count as "in use" (TIME_WAIT).
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise _cannot_listen(host, port, flag, error) from None


_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


def _cannot_listen(host: str, port: int, flag: str, error: OSError) -> PlanariaError:
    if isinstance(error, socket.gaierror) or error.errno in _NO_SUCH_ADDRESS:
        message = f"{host} is not an address of this machine"
    elif error.errno in _FORBIDDEN:
        message = f"port {port} needs privileges: choose one above 1023 with {flag}"
    else:
        message = f"port {port} is in use: choose another with {flag}, or 0 for a free one"
    return PlanariaError(
        ErrorReason.INVALID_ARGUMENT,
        message,
        {"field": flag, "host": host, "port": str(port)},
    )
