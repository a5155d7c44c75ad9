"""The command line: what it prints, on which stream, and its exit status."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planaria.cli.main import app, main
from planaria.cli.story import Progress, event_text
from planaria.job_file import load_job_file
from planaria.models import Event, Job
from unit.sdk.fake_coordinator import Answer, FakeCoordinator, problem, stream
from unit.sdk.samples import PLAN, RECOVERY, event, job, node

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; return its exit status, standard output and standard error."""

    def invoke(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return invoke


METRICS = [
    {"step": 0, "loss": 4.0, "evaluation_loss": 2.0, "tokens_per_second": 1234.0},
    {"step": 1, "loss": 3.5, "evaluation_loss": None, "tokens_per_second": 1234.0},
    {"step": 2, "loss": None, "evaluation_loss": 1.0, "tokens_per_second": 0.0},
]

READING: list[tuple[tuple[str, ...], str, dict[str, Any], str]] = [
    (("jobs", "list"), "GET /jobs", {"jobs": [job()], "next_page_token": ""}, "3/10"),
    (("jobs", "get", "job-1"), "GET /jobs/job-1", job(), "step       3 of 10"),
    (
        ("jobs", "plan", "job-1"),
        "GET /jobs/job-1/plan",
        {"plan": PLAN, "generation": 2, "reason": "the fastest"},
        "0-2 on node-1 | 3 on node-2",
    ),
    (
        ("jobs", "metrics", "job-1"),
        "GET /jobs/job-1/metrics",
        {"metrics": [METRICS[0]], "next_page_token": ""},
        "4.0000",
    ),
    (
        ("jobs", "events", "job-1"),
        "GET /jobs/job-1/events",
        {"events": [event(1)], "next_page_token": ""},
        "event 1 [of node_lost]",
    ),
    (
        ("jobs", "logs", "job-1"),
        "GET /jobs/job-1/logs",
        {"lines": [{"sequence": 1, "time": None, "engine_id": "e", "text": "[x] hi"}]},
        "- e [x] hi",
    ),
    (
        ("nodes", "list"),
        "GET /nodes",
        {"nodes": [node("node-1")], "next_page_token": ""},
        "job-1 TRAINING 42",
    ),
    (("jobs", "pause", "job-1"), "POST /jobs/job-1:pause", job(state="PAUSED"), "job-1 PAUSED"),
    (("jobs", "resume", "job-1"), "POST /jobs/job-1:resume", job(), "job-1 RUNNING"),
    (("jobs", "cancel", "job-1"), "POST /jobs/job-1:cancel", job(state="CANCELLED"), "CANCELLED"),
    (
        ("nodes", "drain", "node-1"),
        "POST /nodes/node-1:drain",
        node("node-1", state="DRAINING"),
        "node-1 DRAINING",
    ),
    (("nodes", "cordon", "node-1"), "POST /nodes/node-1:cordon", node("node-1"), "node-1 READY"),
    (("nodes", "uncordon", "n"), "POST /nodes/n:uncordon", node("n"), "n READY"),
]


@pytest.mark.parametrize(("arguments", "route", "body", "shown"), READING)
def test_commands_print_for_people_and_the_exact_body_for_programs(
    run: Run,
    coordinator: FakeCoordinator,
    arguments: tuple[str, ...],
    route: str,
    body: dict[str, Any],
    shown: str,
) -> None:
    coordinator.answer(route, Answer(body=body))
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": [RECOVERY]}))
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    assert shown in out
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == body


def test_a_job_is_shown_with_the_failures_it_lived_through(
    run: Run, coordinator: FakeCoordinator
) -> None:
    coordinator.answer("GET /jobs/job-1", Answer(body=job()))
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": [RECOVERY]}))
    _, out, _ = run("jobs", "get", "job-1")
    [row] = [line for line in out.splitlines() if "node_lost" in line]
    for part in ("node-3", "0.12 s", "2.5 MB", "2+1 -> 2"):
        assert part in row


def test_only_a_job_that_goes_on_survives_losses(run: Run, coordinator: FakeCoordinator) -> None:
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": []}))
    for state, is_told in (("RUNNING", True), ("FAILED", False), ("SUCCEEDED", False)):
        coordinator.answer("GET /jobs/job-1", Answer(body=job(state=state)))
        assert ("1 lost node at once" in run("jobs", "get", "job-1")[1]) is is_told


def test_a_job_that_waits_is_shown_with_the_reason(run: Run, coordinator: FakeCoordinator) -> None:
    reason = "2 of 4 nodes are free (2 replicas of 2 nodes)"
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": []}))
    coordinator.answer("GET /jobs/job-1", Answer(body=job(state="PENDING", waiting_reason=reason)))
    assert f"waits for  {reason}\n" in run("jobs", "get", "job-1")[1]
    coordinator.answer("GET /jobs/job-1", Answer(body=job(waiting_reason="")))
    assert "waits for" not in run("jobs", "get", "job-1")[1]


def test_a_job_is_shown_with_its_newest_evaluation(run: Run, coordinator: FakeCoordinator) -> None:
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": []}))
    for loss, shown in ((2.0, "7.39"), (1e6, "inf")):
        body = job(evaluation_loss=loss, evaluation_step=2)
        coordinator.answer("GET /jobs/job-1", Answer(body=body))
        _, out, _ = run("jobs", "get", "job-1")
        assert f"evaluation loss {loss:.4f}, perplexity {shown}, after 2 steps" in out
    coordinator.answer("GET /jobs/job-1", Answer(body=job()))
    assert "evaluation" not in run("jobs", "get", "job-1")[1]


def test_steps_tell_their_evaluations(run: Run, coordinator: FakeCoordinator) -> None:
    body = {"metrics": METRICS, "next_page_token": ""}
    coordinator.answer("GET /jobs/job-1/metrics", Answer(body=body))
    _, out, _ = run("jobs", "metrics", "job-1")
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [row[:4] for row in rows] == [
        ["0", "4.0000", "2.0000", "7.39"],
        ["1", "3.5000", "-", "-"],
        ["2", "-", "1.0000", "2.72"],
    ]
    _, out, _ = run("jobs", "metrics", "job-1", "--evaluations", "--json")
    assert [each["step"] for each in json.loads(out)["metrics"]] == [0, 2]


@pytest.mark.parametrize("group", ["jobs", "nodes"])
def test_a_group_alone_lists(run: Run, coordinator: FakeCoordinator, group: str) -> None:
    coordinator.answer(f"GET /{group}", Answer(body={group: [], "next_page_token": ""}))
    status, out, _ = run(group)
    assert status == 0
    assert out.startswith(f"no {group}: ")
    status, out, _ = run(group, "--json", "--address", coordinator.url)
    assert json.loads(out) == {group: [], "next_page_token": ""}


def test_a_node_is_removed(run: Run, coordinator: FakeCoordinator) -> None:
    coordinator.answer("DELETE /nodes/node-1", Answer(status=204))
    assert run("nodes", "rm", "node-1") == (0, "node-1 removed\n", "")


def test_submit_prints_the_id_alone(run: Run, coordinator: FakeCoordinator, job_file: Path) -> None:
    coordinator.answer("POST /jobs", Answer(status=201, body=job(state="PENDING")))
    assert run("submit", job_file) == (0, "job-1\n", "")
    _, out, _ = run("submit", job_file, "--json")
    assert json.loads(out) == job(state="PENDING")


def test_submit_says_where_training_begins(
    run: Run, coordinator: FakeCoordinator, job_file: Path
) -> None:
    job_file.write_text(job_file.read_text() + "\ninit_from: runs/x\n")
    root = job_file.parent / "runs" / "x"
    submitted = job(state="PENDING", spec={"init_from": str(root)})
    coordinator.answer("POST /jobs", Answer(status=201, body=submitted))
    assert run("submit", job_file) == (0, "job-1\n", f"training begins from {root}\n")
    assert coordinator.requests[-1].body["spec"]["init_from"] == str(root)


def test_resume_goes_on_from_the_checkpoints_of_an_earlier_job(
    run: Run, coordinator: FakeCoordinator, job_file: Path
) -> None:
    """With its own job file, or with another one."""
    before = load_job_file(job_file).to_document() | {"checkpoint": {"path": "/runs/x"}}
    submitted = job(state="PENDING", spec={"init_from": "/runs/x"})
    told = (0, "job-1\n", "training begins from /runs/x\n")
    coordinator.answer("GET /jobs/job-0", Answer(body=job(id="job-0", spec=before)))
    coordinator.answer("POST /jobs", Answer(status=201, body=submitted))
    assert run("submit", "--resume", "job-0") == told
    body = coordinator.requests[-1].body
    assert (body["resume_job_id"], body["spec"]["checkpoint"]["path"]) == ("job-0", "/runs/x")
    assert run("submit", job_file, "--resume", "job-0") == told
    body = coordinator.requests[-1].body
    assert (body["resume_job_id"], body["spec"]["checkpoint"]) == ("job-0", None)


def test_a_job_without_checkpoints_cannot_be_resumed(
    run: Run, coordinator: FakeCoordinator, job_file: Path
) -> None:
    """The coordinator says why: also to a dry run."""
    message = "job-0 wrote no checkpoints: checkpoint.path was not set"
    coordinator.answer("POST /jobs", problem(422, "INVALID_ARGUMENT", message))
    told = (1, "", f"error: {message}\n")
    assert run("submit", job_file, "--resume", "job-0") == told
    assert run("submit", job_file, "--resume", "job-0", "--dry-run") == told
    assert coordinator.requests[-1].body["resume_job_id"] == "job-0"


def test_dry_run_prints_the_plan_and_starts_nothing(
    run: Run, coordinator: FakeCoordinator, job_file: Path
) -> None:
    body = {"job": job(id="", state="PENDING"), "plan": PLAN}
    coordinator.answer(
        "POST /jobs", Answer(body=body), Answer(body=body), Answer(body={**body, "plan": None})
    )
    status, out, _ = run("submit", job_file, "--dry-run")
    assert status == 0
    assert "0-2 on node-1 | 3 on node-2" in out
    assert "idle: node-3" in out
    assert all(request.body["dry_run"] is True for request in coordinator.requests)
    _, out, _ = run("submit", job_file, "--dry-run", "--json")
    assert json.loads(out) == body
    _, out, _ = run("submit", job_file, "--dry-run")
    assert out == "too few nodes are ready for a plan: the job would wait for 1\n"


def follow_answers(coordinator: FakeCoordinator, **end: Any) -> None:
    coordinator.answer("POST /jobs", Answer(status=201, body=job(state="PENDING")))
    coordinator.answer("GET /jobs/job-1", Answer(body=job()), Answer(body=job(**end)))
    coordinator.answer("STREAM /jobs/job-1/events", stream(event(1), event(2, "recovery_finished")))
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": [RECOVERY]}))
    rest = {"events": [event(3, "job_succeeded")], "next_page_token": ""}
    coordinator.answer("GET /jobs/job-1/events", Answer(body=rest))


def test_follow_tells_the_story_to_its_end(
    run: Run, coordinator: FakeCoordinator, job_file: Path
) -> None:
    follow_answers(coordinator, state="SUCCEEDED", step=10, final_digest="abcd")
    status, out, err = run("submit", job_file, "--follow")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "job-1"
    assert "RUNNING  step 3/10  loss 5.2500  1,234 tokens/s" in lines
    assert sum("event 1 [of node_lost]" in line for line in lines) == 1, "told once"
    recovery = "          copied 2.5 MB between engines, computed 2 microbatches again"
    assert lines.count(recovery) == 1
    assert lines[-1] == "final digest abcd"


def test_follow_for_programs_prints_the_job_as_it_ended(
    run: Run, coordinator: FakeCoordinator, job_file: Path
) -> None:
    follow_answers(coordinator, state="SUCCEEDED", step=10)
    _, out, _ = run("submit", job_file, "--follow", "--json")
    assert json.loads(out) == job(state="SUCCEEDED", step=10)


def test_follow_fails_when_the_job_does(
    run: Run, coordinator: FakeCoordinator, job_file: Path
) -> None:
    error = {"reason": "DATA_UNUSABLE", "message": "node-2: corpus/*.txt matches no file"}
    follow_answers(coordinator, state="FAILED", error=error)
    status, _, err = run("submit", job_file, "--follow")
    assert status == 1
    assert err == "error: node-2: corpus/*.txt matches no file\n"


def test_following_events_ends_with_the_job(run: Run, coordinator: FakeCoordinator) -> None:
    coordinator.answer(
        "STREAM /jobs/job-1/events", stream(event(1), event(2, "job_succeeded"), event(3))
    )
    status, out, _ = run("jobs", "events", "job-1", "--follow", "--json")
    assert status == 0
    assert [json.loads(line)["sequence"] for line in out.splitlines()] == [1, 2]


def test_a_bad_job_file_is_one_line_for_each_problem_and_status_2(run: Run, job_file: Path) -> None:
    job_file.write_text(job_file.read_text().replace("steps: 10", "stepz: 10"))
    assert run("submit", job_file) == (
        2,
        "",
        f"error: {job_file}: training.stepz: unknown field; did you mean steps?\n"
        f"error: {job_file}: training.steps: is missing, and has no default\n",
    )


def test_a_job_that_the_coordinator_refuses(
    run: Run, coordinator: FakeCoordinator, job_file: Path
) -> None:
    coordinator.answer(
        "POST /jobs", problem(409, "FAULT_TOLERANCE_IMPOSSIBLE", "2 lost nodes need 3 nodes")
    )
    assert run("submit", job_file) == (1, "", "error: 2 lost nodes need 3 nodes\n")


USAGE = [
    (("jobs", "lst"), "No such command 'lst'. Did you mean 'list'?"),
    (("--nope",), "No such option: --nope"),
    (("jobs", "get"), "Missing argument 'JOB'."),
    (("jobs", "--json", "list"), "--json: belongs behind the subcommand"),
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
    run: Run, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
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


def test_version_answers_without_a_coordinator(run: Run, coordinator: FakeCoordinator) -> None:
    coordinator.answer("GET /info", Answer(body={"version": "0.1.0", "protocol_version": 1}))
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
    assert run("down") == (1, "", "error: no cluster was started here\n")


def test_every_command_is_documented() -> None:
    for group in (app, *(info.typer_instance for info in app.registered_groups)):
        assert group is not None
        for command in group.registered_commands:
            assert command.help or (command.callback and command.callback.__doc__), command.name


def test_progress_is_worth_a_line_when_the_state_or_enough_steps_changed() -> None:
    progress = Progress()

    def line(**fields: Any) -> str | None:
        text = progress.line(Job.model_validate(job(steps=100, **fields)))
        return text.plain if text else None

    assert line(step=0, state="STARTING", loss=None, tokens_per_second=0) == "STARTING  step 0/100"
    assert line(step=0, state="STARTING") is None
    assert line(step=1) == "RUNNING  step 1/100  loss 5.2500  1,234 tokens/s"
    assert line(step=5) is None
    assert line(step=6) is not None
    assert line(step=6, state="RECOVERING") is not None
    evaluated = line(step=20, evaluation_loss=4.5, evaluation_step=20)
    assert evaluated == "RUNNING  step 20/100  loss 5.2500  evaluation 4.5000  1,234 tokens/s"


def test_events_are_shown_in_the_coordinators_words() -> None:
    shown = event_text(Event.model_validate(event(1, time=None, message="node-2 is lost")))
    assert shown.plain == "-  node-2 is lost"
    assert event_text(Event.model_validate(event(1, message=""))).plain.endswith("node_lost")
