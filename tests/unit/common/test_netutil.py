import socket

import pytest

from benchmarks.common.ports import free_port
from planaria_common.errors import InvalidArgumentError
from planaria_common.netutil import (
    is_loopback,
    require_credentials_beyond_loopback,
    require_free_port,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)
    require_credentials_beyond_loopback(host, None, flag="--host")


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.1", "example.org", ""],  # noqa: S104 - to see it refused
)
def test_other_addresses_need_a_token(host: str) -> None:
    assert not is_loopback(host)
    require_credentials_beyond_loopback(host, "token", flag="--host")
    with pytest.raises(InvalidArgumentError, match="a token is needed"):
        require_credentials_beyond_loopback(host, None, flag="--host")


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(InvalidArgumentError) as caught:
            require_free_port("127.0.0.1", port, flag="--http-port")
    assert str(caught.value) == (
        f"port {port} is in use: choose another with --http-port, or 0 for a free one"
    )
    require_free_port("127.0.0.1", port, flag="--http-port")


def test_zero_and_a_free_port_are_accepted() -> None:
    require_free_port("127.0.0.1", 0, flag="--port")
    require_free_port("127.0.0.1", free_port(), flag="--port")


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"192\.0\.2\.1 is not an address of this"):
        require_free_port("192.0.2.1", free_port(), flag="--port")
