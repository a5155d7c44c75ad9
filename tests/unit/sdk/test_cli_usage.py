"""Wrong usage, addresses, help and defects: one line, and the right exit status."""

import json
import subprocess
import sys

import pytest

from planaria.cli.main import app
from unit.sdk.cli import Run
from unit.sdk.fake_api import Answer, FakeApi
from unit.sdk.samples import INFO

USAGE = [
    (("jobs", "lst"), "No such command 'lst'. Did you mean 'list'?"),
    (("--nope",), "No such option: --nope"),
    (("jobs", "get"), "Missing argument 'JOB'."),
    (("jobs", "--json", "list"), "--json: belongs after the subcommand"),
    (("nodes", "list", "--address", "foo"), "--address foo: must be a URL such as"),
    (("up", "--nodes", "0"), "Invalid value for '--nodes'"),
    (("submit", "/none/job.yaml"), "/none/job.yaml: cannot read the job file: No such file"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE)
def test_wrong_usage_is_one_line_and_status_2(
    run: Run, arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--address", "http://127.0.0.1:1", "jobs", "list"),
        ("--address", "http://127.0.0.1:1", "jobs"),
        ("jobs", "--address", "http://127.0.0.1:1", "list"),
        ("--address", "http://127.0.0.1:1", "nodes", "drain", "a"),
        ("--address", "http://127.0.0.1:2", "jobs", "list", "--address", "http://127.0.0.1:1"),
    ],
)
def test_an_address_may_stand_before_the_command_and_the_last_one_wins(
    run: Run, arguments: tuple[str, ...]
) -> None:
    status, _, err = run(*arguments)
    assert status == 1
    assert err.startswith("error: no coordinator answers at http://127.0.0.1:1:")


def test_no_coordinator_is_one_line_and_status_1(run: Run) -> None:
    assert run("jobs", "list", "--address", "http://127.0.0.1:1") == (
        1,
        "",
        "error: no coordinator answers at http://127.0.0.1:1: "
        "start one with `planaria up` or set --address/PLANARIA_ADDRESS\n",
    )


def test_a_defect_is_one_line_unless_asked(
    run: Run, coordinator: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("planaria.client.Client.fetch", fail)
    status, out, err = run("jobs", "list")
    assert (status, out) == (1, "")
    assert err == (
        "error: a defect in planaria (RuntimeError: boom); PLANARIA_DEBUG=1 shows where\n"
    )
    monkeypatch.setenv("PLANARIA_DEBUG", "1")
    assert "Traceback" in run("jobs", "list")[2]


def test_version_answers_without_a_coordinator(run: Run, coordinator: FakeApi) -> None:
    coordinator.answer("GET /info", Answer(body=INFO))
    _, out, _ = run("version")
    assert out.splitlines()[1] == "server 0.1.0 (protocol 1)"
    status, out, _ = run("version", "--address", "http://127.0.0.1:1")
    assert status == 0
    assert out.splitlines()[1] == "server none answers"
    assert len(run("version", "--client")[1].splitlines()) == 1


def test_schema_is_json(run: Run) -> None:
    assert json.loads(run("schema")[1])["properties"]["training"]


def test_help_lists_every_command_without_any_part() -> None:
    """`planaria --help` must not import numba or torch."""
    code = (
        "import sys; from planaria.cli.main import main; status = main(['--help']);"
        "assert not {'torch', 'numba', 'planaria_planner', 'planaria_worker'} & set(sys.modules);"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in (
        "submit",
        "jobs",
        "nodes",
        "plan",
        "profile",
        "schema",
        "version",
        "up",
        "down",
    ):
        assert f"  {command} " in done.stdout


def test_the_installed_command_exits_with_the_status() -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from planaria.cli.main import main; sys.exit(main())",
    ]
    done = subprocess.run(
        [*command, "jobs", "list", "--address", "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no coordinator answers at")
    assert subprocess.run([*command, "jobs", "x"], capture_output=True, check=False).returncode == 2


def test_down_without_a_cluster(run: Run) -> None:
    assert run("down") == (
        1,
        "",
        "error: no cluster of yours was found: `planaria up` starts one\n",
    )


def test_every_command_is_documented() -> None:
    for group in (app, *(info.typer_instance for info in app.registered_groups)):
        assert group is not None
        for command in group.registered_commands:
            assert command.help or (command.callback and command.callback.__doc__), command.name
