"""What the coordinator is told when it starts."""

import socket
from pathlib import Path

import pytest

from planaria_common.errors import AccessError, InvalidArgumentError
from planaria_common.settings import load_settings
from planaria_coordinator.bootstrap import find_token
from planaria_coordinator.settings import CoordinatorSettings


def settings(*arguments: str) -> CoordinatorSettings:
    return load_settings(CoordinatorSettings, program="coordinator", arguments=arguments)


def test_the_documented_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator without settings listens on loopback alone, with the architecture's times."""
    made = settings()

    assert (made.host, made.http_port, made.grpc_port) == ("127.0.0.1", 8080, 50051)
    assert (made.heartbeat_interval_seconds, made.node_deadline_seconds) == (1, 3)
    assert (made.agent_lease_seconds, made.directive_deadline_seconds) == (10, 5)
    assert made.url_of_database.startswith("sqlite:///")
    assert made.listens_on_loopback_only


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the environment can hold them."""
    monkeypatch.setenv("PLANARIA_COORDINATOR_PLANNER_ADDRESSES", "a:1, b:2")
    made = settings("--allowed-hosts", "Planaria.example")

    assert made.planner_addresses == ("a:1", "b:2")
    assert "planaria.example" in made.hosts
    assert "localhost" in made.hosts


def test_a_server_on_all_interfaces_advertises_the_host_name() -> None:
    """0.0.0.0 is no address that others could use."""
    everywhere = "0.0.0.0"  # noqa: S104 - nothing listens
    made = settings("--host", everywhere)

    assert made.reachable_host == socket.gethostname()
    assert socket.gethostname().lower() in made.hosts
    assert everywhere not in made.hosts


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--http-port", "70000"), "--http-port"),
        (("--node-deadline-seconds", "0"), "--node-deadline-seconds"),
        (("--node-deadline-seconds", "0.5"), "--node-deadline-seconds"),
        (("--max-log-lines-per-job", "0"), "--max-log-lines-per-job"),
    ],
)
def test_a_wrong_setting_is_named(arguments: tuple[str, ...], option: str) -> None:
    """The option, its variable, and what would be right."""
    with pytest.raises(InvalidArgumentError, match=option):
        settings(*arguments)


def test_the_token_is_made_at_the_first_start(tmp_path: Path) -> None:
    """On loopback a token file appears in the data directory, for this user alone."""
    token = find_token(settings("--data-dir", str(tmp_path / "data")))

    path = tmp_path / "data" / "token"
    assert path.read_text().strip() == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert find_token(settings("--data-dir", str(tmp_path / "data"))) == token


def test_no_server_for_others_without_a_token(tmp_path: Path) -> None:
    """A token that nobody was given would lock everybody out, and none would let everybody in."""
    with pytest.raises(InvalidArgumentError, match="--token-file"):
        find_token(settings("--data-dir", str(tmp_path), "--host", "192.0.2.1"))
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """The command that keeps others out is named."""
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        find_token(settings("--token-file", str(path), "--host", "192.0.2.1"))
