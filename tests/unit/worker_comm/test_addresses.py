"""Addresses keep their meaning from socket to text and back."""

import pytest

from planaria_common.errors import InvalidArgumentError
from planaria_worker.addresses import format_address, parse_address, plain


@pytest.mark.parametrize(("host", "text"), [("10.0.0.1", "10.0.0.1:80"), ("::1", "[::1]:80")])
def test_round_trip(host: str, text: str) -> None:
    assert format_address(host, 80) == text
    assert parse_address(text) == (host, 80)


@pytest.mark.parametrize("text", ["", "80", ":80", "host", "host:", "host:0", "host:65536", "h:²"])
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not of the form host:port"):
        parse_address(text)


def test_both_ends_of_a_dual_stack_connection_compare_equal() -> None:
    assert plain(("::ffff:10.0.0.1", 80, 0, 0)) == plain(("10.0.0.1", 80))
