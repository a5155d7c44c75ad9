"""Submitting a job, and following it to its end."""

import json
from pathlib import Path
from typing import Any

from planaria.cli.job_report import Progress, event_text
from planaria.job_file import load_job_file
from planaria.models import Event, Job
from unit.sdk.cli import Run
from unit.sdk.fake_api import Answer, FakeApi, problem, stream
from unit.sdk.samples import PLAN, RECOVERY, event, job


def test_submit_prints_the_id_alone(run: Run, coordinator: FakeApi, job_file: Path) -> None:
    coordinator.answer("POST /jobs", Answer(status=201, body=job(state="PENDING")))
    assert run("submit", job_file) == (0, "job-1\n", "")
    _, out, _ = run("submit", job_file, "--json")
    assert json.loads(out) == job(state="PENDING")


def test_submit_says_where_training_begins(run: Run, coordinator: FakeApi, job_file: Path) -> None:
    job_file.write_text(job_file.read_text() + "\ninit_from: runs/x\n")
    root = job_file.parent / "runs" / "x"
    submitted = job(state="PENDING", spec={"init_from": str(root)})
    coordinator.answer("POST /jobs", Answer(status=201, body=submitted))
    assert run("submit", job_file) == (0, "job-1\n", f"training begins from {root}\n")
    assert coordinator.requests[-1].body["spec"]["init_from"] == str(root)


def test_resume_goes_on_from_the_checkpoints_of_an_earlier_job(
    run: Run, coordinator: FakeApi, job_file: Path
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
    run: Run, coordinator: FakeApi, job_file: Path
) -> None:
    """The coordinator says why: also to a dry run."""
    message = "job-0 wrote no checkpoints: checkpoint.path was not set"
    coordinator.answer("POST /jobs", problem(422, "INVALID_ARGUMENT", message))
    told = (1, "", f"error: {message}\n")
    assert run("submit", job_file, "--resume", "job-0") == told
    assert run("submit", job_file, "--resume", "job-0", "--dry-run") == told
    assert coordinator.requests[-1].body["resume_job_id"] == "job-0"


def test_dry_run_prints_the_plan_and_starts_nothing(
    run: Run, coordinator: FakeApi, job_file: Path
) -> None:
    body = {"job": job(id="", state="PENDING"), "plan": PLAN, "reason": ""}
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


def follow_answers(coordinator: FakeApi, **end: Any) -> None:
    coordinator.answer("POST /jobs", Answer(status=201, body=job(state="PENDING")))
    coordinator.answer("GET /jobs/job-1", Answer(body=job()), Answer(body=job(**end)))
    coordinator.answer("STREAM /jobs/job-1/events", stream(event(1), event(2, "recovery_finished")))
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": [RECOVERY]}))
    rest = {"events": [event(3, "job_succeeded")], "next_page_token": ""}
    coordinator.answer("GET /jobs/job-1/events", Answer(body=rest))


def test_follow_prints_the_job_to_its_end(run: Run, coordinator: FakeApi, job_file: Path) -> None:
    follow_answers(coordinator, state="SUCCEEDED", step=10, final_digest="abcd")
    status, out, err = run("submit", job_file, "--follow")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "job-1"
    assert "RUNNING  step 3/10  loss 5.2500  1,234 tokens/s" in lines
    assert sum("event 1 [of node_lost]" in line for line in lines) == 1, "told once"
    cost = "copied 2.5 MB between engines, computed 2 microbatches again"
    assert lines.count(f"          {cost}") == 1
    assert lines[-1] == "final digest abcd"


def test_follow_for_programs_prints_the_job_as_it_ended(
    run: Run, coordinator: FakeApi, job_file: Path
) -> None:
    follow_answers(coordinator, state="SUCCEEDED", step=10)
    _, out, _ = run("submit", job_file, "--follow", "--json")
    assert json.loads(out) == job(state="SUCCEEDED", step=10)


def test_follow_fails_when_the_job_does(run: Run, coordinator: FakeApi, job_file: Path) -> None:
    error = {"reason": "DATA_UNUSABLE", "message": "node-2: corpus/*.txt matches no file"}
    follow_answers(coordinator, state="FAILED", error=error)
    status, _, err = run("submit", job_file, "--follow")
    assert status == 1
    assert err == "error: node-2: corpus/*.txt matches no file\n"


def test_following_events_ends_with_the_job(run: Run, coordinator: FakeApi) -> None:
    coordinator.answer(
        "STREAM /jobs/job-1/events", stream(event(1), event(2, "job_succeeded"), event(3))
    )
    status, out, _ = run("jobs", "events", "job-1", "--follow", "--json")
    assert status == 0
    assert [json.loads(line)["sequence"] for line in out.splitlines()] == [1, 2]


def test_a_bad_job_file_is_one_line_for_each_problem_and_exit_status_2(
    run: Run, job_file: Path
) -> None:
    job_file.write_text(job_file.read_text().replace("steps: 10", "stepz: 10"))
    assert run("submit", job_file) == (
        2,
        "",
        f"error: {job_file}: training.stepz: unknown field; did you mean steps?\n"
        f"error: {job_file}: training.steps: is missing, and has no default\n",
    )


def test_a_job_that_the_coordinator_refuses(run: Run, coordinator: FakeApi, job_file: Path) -> None:
    coordinator.answer(
        "POST /jobs", problem(409, "FAULT_TOLERANCE_IMPOSSIBLE", "2 lost nodes need 3 nodes")
    )
    assert run("submit", job_file) == (1, "", "error: 2 lost nodes need 3 nodes\n")


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
    shown = event_text(Event.model_validate(event(1, message="node-2 is lost")))
    assert shown.plain.endswith("  node-2 is lost")
    assert event_text(Event.model_validate(event(1, message=""))).plain.endswith("node_lost")
