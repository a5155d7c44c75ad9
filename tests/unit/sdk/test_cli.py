"""The command line: what it prints, on which stream, and its exit status."""

import json
from typing import Any

import pytest

from unit.sdk.cli import Run
from unit.sdk.fake_api import Answer, FakeApi, problem
from unit.sdk.samples import PLAN, RECOVERY, event, job, log_line, node, step_metrics

METRICS = [
    step_metrics(0, loss=4.0, evaluation_loss=2.0, tokens_per_second=1234.0),
    step_metrics(1, loss=3.5, evaluation_loss=None, tokens_per_second=1234.0),
    step_metrics(2, loss=None, evaluation_loss=1.0, tokens_per_second=0.0),
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
        {"lines": [log_line(1, "[x] hi")]},
        "e [x] hi",
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
    (("nodes", "evict", "n"), "POST /nodes/n:evict", node("n", state="LOST"), "n LOST"),
    (("nodes", "cordon", "node-1"), "POST /nodes/node-1:cordon", node("node-1"), "node-1 READY"),
    (("nodes", "uncordon", "n"), "POST /nodes/n:uncordon", node("n"), "n READY"),
]


@pytest.mark.parametrize(("arguments", "route", "body", "shown"), READING)
def test_commands_print_for_people_and_the_exact_body_for_programs(
    run: Run,
    coordinator: FakeApi,
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


@pytest.mark.parametrize(
    "arguments", [("jobs", "cancel", "job-1"), ("nodes", "drain", "job-1")], ids=["job", "node"]
)
def test_a_change_is_shown_whatever_else_the_answer_of_another_version_has(
    run: Run, coordinator: FakeApi, arguments: tuple[str, ...]
) -> None:
    path = f"/{arguments[0]}/job-1:{arguments[1]}"
    coordinator.answer(f"POST {path}", Answer(body={"state": "CHANGED", "colour": "red"}))
    assert run(*arguments) == (0, "job-1 CHANGED\n", "")


def test_a_job_is_shown_with_the_failures_it_lived_through(run: Run, coordinator: FakeApi) -> None:
    coordinator.answer("GET /jobs/job-1", Answer(body=job()))
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": [RECOVERY]}))
    _, out, _ = run("jobs", "get", "job-1")
    [row] = [line for line in out.splitlines() if "node_lost" in line]
    for part in ("node-3", "0.12 s", "2.5 MB", "2+1 -> 2"):
        assert part in row


def test_only_a_job_that_goes_on_survives_losses(run: Run, coordinator: FakeApi) -> None:
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": []}))
    for state, is_told in (("RUNNING", True), ("FAILED", False), ("SUCCEEDED", False)):
        coordinator.answer("GET /jobs/job-1", Answer(body=job(state=state)))
        assert ("1 lost node at once" in run("jobs", "get", "job-1")[1]) is is_told


def test_a_job_that_waits_is_shown_with_the_reason(run: Run, coordinator: FakeApi) -> None:
    reason = "2 of 4 nodes are free (2 replicas of 2 nodes)"
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": []}))
    coordinator.answer("GET /jobs/job-1", Answer(body=job(state="PENDING", waiting_reason=reason)))
    assert f"waits for  {reason}\n" in run("jobs", "get", "job-1")[1]
    coordinator.answer("GET /jobs/job-1", Answer(body=job(waiting_reason="")))
    assert "waits for" not in run("jobs", "get", "job-1")[1]


def test_nodes_that_are_silent_are_shown(run: Run, coordinator: FakeApi) -> None:
    since = "2026-01-01T00:00:00Z"
    condition = {
        "type": "NODES_SILENT",
        "message": "a says nothing",
        "node_ids": ["a"],
        "since_time": since,
    }
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": []}))
    coordinator.answer("GET /jobs/job-1", Answer(body=job(conditions=[condition])))
    shown = run("jobs", "get", "job-1")[1]
    assert "NODES_SILENT since " in shown
    assert ": a says nothing\n" in shown
    nodes = [node("a", silent_since_time=since), node("b")]
    coordinator.answer("GET /nodes", Answer(body={"nodes": nodes}))
    assert run("nodes", "list")[1].count("silent since ") == 1


def test_a_job_is_shown_with_its_newest_evaluation(run: Run, coordinator: FakeApi) -> None:
    coordinator.answer("GET /jobs/job-1/recoveries", Answer(body={"recoveries": []}))
    for loss, shown in ((2.0, "7.39"), (1e6, "inf")):
        body = job(evaluation_loss=loss, evaluation_step=2)
        coordinator.answer("GET /jobs/job-1", Answer(body=body))
        _, out, _ = run("jobs", "get", "job-1")
        assert f"evaluation loss {loss:.4f}, perplexity {shown}, after 2 steps" in out
    coordinator.answer("GET /jobs/job-1", Answer(body=job()))
    assert "evaluation" not in run("jobs", "get", "job-1")[1]


def test_steps_tell_their_evaluations(run: Run, coordinator: FakeApi) -> None:
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
def test_a_group_alone_lists(run: Run, coordinator: FakeApi, group: str) -> None:
    coordinator.answer(f"GET /{group}", Answer(body={group: [], "next_page_token": ""}))
    status, out, _ = run(group)
    assert status == 0
    assert out.startswith(f"no {group}: ")
    status, out, _ = run(group, "--json", "--address", coordinator.url)
    assert json.loads(out) == {group: [], "next_page_token": ""}


def test_a_node_is_removed(run: Run, coordinator: FakeApi) -> None:
    coordinator.answer("DELETE /nodes/node-1", Answer(status=204))
    assert run("nodes", "rm", "node-1") == (0, "node-1 removed\n", "")


def test_an_unknown_job_is_told_with_how_to_list_the_others(run: Run, coordinator: FakeApi) -> None:
    coordinator.answer("GET /jobs/x", problem(404, "JOB_NOT_FOUND", "there is no job x"))
    told = "error: there is no job x: `planaria jobs list` shows them\n"
    assert run("jobs", "get", "x") == (1, "", told)
