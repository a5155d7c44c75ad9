"""What every `planaria-<part>` command does before and around its work."""

import asyncio
import json
import logging
import os
import signal
from io import StringIO
from pathlib import Path

import pytest
from pydantic import Field, NonNegativeInt

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import configure_logging, drain_logs, get_logger
from planaria_common.service import announce_ready, run_service, stop_signal
from planaria_common.settings import CommaSeparated, ServiceSettings, load_settings


class Settings(ServiceSettings, env_prefix="PLANARIA_TESTER_"):
    """A service for tests."""

    http_port: NonNegativeInt = Field(default=1, le=65535, description="A port.")
    peers: CommaSeparated = ("a",)


async def nothing(_settings: Settings) -> None:
    announce_ready(grpc_address="127.0.0.1:1", pid=7)


def run(*arguments: str) -> int:
    return run_service(
        part="tester", settings_type=Settings, serve=nothing, arguments=list(arguments)
    )


def load(*arguments: str) -> Settings:
    return load_settings(Settings, program="planaria-tester", arguments=arguments)


def test_options_win_over_the_environment_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().http_port == 1
    monkeypatch.setenv("PLANARIA_TESTER_HTTP_PORT", "2")
    assert load().http_port == 2
    assert load("--http-port", "3").http_port == 3


def test_lists_are_comma_separated_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANARIA_TESTER_PEERS", "b, c")
    assert load().peers == ("b", "c")
    assert load("--peers", "d,e", "--token-file", "t").peers == ("d", "e")


def test_a_wrong_value_names_option_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--http-port", "70000") == 2
    assert capsys.readouterr().err == (
        "error: --http-port (PLANARIA_TESTER_HTTP_PORT): "
        "input should be less than or equal to 65535\n"
    )


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--nonsense")
    assert caught.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


def test_the_ready_line_is_all_of_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    word, _, facts = capsys.readouterr().out.partition(" ")
    assert word == "ready"
    assert json.loads(facts) == {"grpc_address": "127.0.0.1:1", "pid": 7}


def test_an_error_at_start_is_one_line_and_an_exit_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fail(_settings: Settings) -> None:
        raise PlanariaError(ErrorReason.UNAVAILABLE, "the planner does not answer")

    status = run_service(part="tester", settings_type=Settings, serve=fail, arguments=[])
    assert status == 1
    assert capsys.readouterr().err == "error: the planner does not answer\n"


async def test_a_stop_signal_is_awaited() -> None:
    waiting = asyncio.create_task(stop_signal())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(waiting, 5) is signal.SIGTERM


def test_log_lines_are_events_with_fields() -> None:
    log = StringIO()
    configure_logging(component="tester", log_format="json", stream=log)
    get_logger("part").info("node_lost", node_id="node-2")
    get_logger("part").debug("not at this level")
    logging.getLogger("library").warning("from %s", "elsewhere")
    drain_logs(30)
    ours, theirs = map(json.loads, log.getvalue().splitlines())
    assert {k: ours[k] for k in ("event", "node_id", "component", "level")} == {
        "event": "node_lost",
        "node_id": "node-2",
        "component": "tester",
        "level": "info",
    }
    assert (theirs["event"], theirs["component"]) == ("from elsewhere", "tester")


def test_logs_on_a_terminal_are_for_people() -> None:
    log = StringIO()
    configure_logging(component="tester", log_format="console", stream=log)
    get_logger("part").info("node_lost", node_id="node-2")
    drain_logs(30)
    assert "node_lost" in log.getvalue()
    assert "node_id=node-2" in log.getvalue()


def test_settings_are_read_from_paths_too(tmp_path: Path) -> None:
    assert load("--token-file", str(tmp_path / "token")).token_file == tmp_path / "token"
