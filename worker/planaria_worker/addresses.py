"""Socket addresses: as text between engines, as (host, port) inside."""

from planaria_common.errors import invalid

Address = tuple[str, int]
"""Host and port; the host is numeric, IPv4 without the ::ffff: that a dual-stack socket shows."""


def format_address(host: str, port: int) -> str:
    """Write `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str) -> Address:
    """Read `host:port`.

    Raises:
        InvalidArgumentError: it is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise invalid("address", f"{text!r} is not of the form host:port", address=text)
    return host.strip("[]"), int(port)


def plain(address: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    """Drop what IPv6 adds to the address of a socket, so that both ends compare equal."""
    return address[0].removeprefix("::ffff:"), address[1]
