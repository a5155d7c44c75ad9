"""`planaria jobs`: what was submitted, how it goes, and why."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from planaria import tracking
from planaria._calls import Call, Calls, list_events
from planaria._connection import read
from planaria._words import counted
from planaria.cli.job_report import event_text
from planaria.cli.options import Address, AsJson, Follow, JobId, list_by_default
from planaria.cli.output import (
    console,
    evaluation_text,
    local_time,
    number,
    perplexity_of,
    print_json,
    print_table,
    show,
    show_state,
    state_text,
)
from planaria.cli.plans import print_plan
from planaria.client import Client
from planaria.models import Condition, Job, JobPlan, LogLine, Recovery, StepMetrics

app = typer.Typer(help="What was submitted, how it goes, and why.", rich_markup_mode=None)


@app.command("list")
def list_jobs(address: Address = None, as_json: AsJson = False) -> None:
    """List the jobs."""
    show(Calls.list_jobs(), address, as_json, _print_jobs)


list_by_default(app, list_jobs)


def _print_jobs(jobs: tuple[Job, ...]) -> None:
    print_table(
        ("JOB", "NAME", "STATE", "STEP", "LOSS", "TOKENS/S", "SUBMITTED"),
        map(_row, jobs),
        empty="no jobs: submit one with `planaria submit JOB.yaml`",
    )


def _row(job: Job) -> tuple[str | Text, ...]:
    return (
        job.id,
        job.name,
        state_text(job.state),
        f"{job.step}/{job.steps}",
        number(job.loss, ".4f"),
        number(job.tokens_per_second or None, ",.0f"),
        local_time(job.create_time),
    )


@app.command("track")
def track(job_id: JobId, address: Address = None) -> None:
    """Write the steps of a job to what its file names under `metrics`, until it ends."""
    with Client(address) as client:
        count = tracking.track(client, client.get_job(job_id))
    typer.echo(f"{count} steps written")


@app.command("get")
def get(job_id: JobId, address: Address = None, as_json: AsJson = False) -> None:
    """Show a job and the failures it has lived through."""
    call = Calls.get_job(job_id)
    with Client(address) as client:
        body = client.fetch(call)
        if as_json:
            print_json(body)
        else:
            _print_job(read(call, body), client.job_recoveries(job_id))


def _print_job(job: Job, recoveries: tuple[Recovery, ...]) -> None:
    times = [(name, s) for name, s in job.time_seconds.items() if s >= 0.05]
    facts: dict[str, str | Text] = {
        "job": f"{job.id} ({job.name})",
        "state": state_text(job.state),
        "waits for": job.waiting_reason,
        "besides": "; ".join(map(_condition_text, job.conditions)),
        "step": f"{job.step} of {job.steps}",
        "loss": number(job.loss, ".4f"),
        "skipped": counted(job.num_skipped_steps, "step") if job.num_skipped_steps else "",
        "evaluation": evaluation_text(job),
        "generation": str(job.generation),
        "survives": "" if job.is_done else f"{counted(job.fault_tolerance, 'lost node')} at once",
        "tokens/s": number(job.tokens_per_second or None, ",.0f"),
        "goodput": number(job.goodput, ".1%"),
        "time": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times),
        "digest": job.final_digest,
        "error": f"{job.error.reason}: {job.error.message}" if job.error else "",
    }
    out = console()
    for name, value in facts.items():
        if value:
            out.print(Text.assemble((f"{name:<11}", "bold"), value))
    if recoveries:
        out.print()
        print_table(
            (
                *("#", "CAUSE", "LOST", "JOINED"),
                *_FIGURES.values(),
                *("COPIED", "REDONE", "PIPELINES OF NODES"),
            ),
            (_recovery_row(recovery) for recovery in recoveries),
            empty="",
        )


def _condition_text(condition: Condition) -> str:
    since = local_time(condition.since_time)
    return f"{condition.type} since {since}: {condition.message}"


_FIGURES = {
    "detect": "DETECT",
    "fence": "FENCE",
    "resume": "RESUME",
    "regrow": "REGROW",
    "idle": "IDLE",
    "lost": "LOST TIME",
}
"""Figures of a recovery and their columns."""


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _recovery_row(recovery: Recovery) -> tuple[str, ...]:
    before, after = recovery.pipeline_sizes_before, recovery.pipeline_sizes_after
    return (
        str(recovery.id),
        recovery.cause,
        ", ".join(recovery.nodes_lost) or "-",
        ", ".join(recovery.nodes_joined) or "-",
        *(_seconds(recovery.figures.get(name)) for name in _FIGURES),
        f"{recovery.copied_bytes / 1e6:.1f} MB",
        str(recovery.redone_microbatches),
        f"{'+'.join(map(str, before))} -> {'+'.join(map(str, after))}",
    )


def _change(call: Callable[[str], Call[Job]]) -> Callable[..., None]:
    def change(job_id: JobId, address: Address = None, as_json: AsJson = False) -> None:
        show_state(call(job_id), address, as_json, job_id)

    return change


app.command("cancel", help="End a job; nothing is written.")(_change(Calls.cancel_job))
app.command("pause", help="Pause a job after its next commit.")(_change(Calls.pause_job))
app.command("resume", help="Continue a paused job.")(_change(Calls.resume_job))


@app.command("metrics")
def metrics(
    job_id: JobId,
    evaluations: Annotated[
        bool, typer.Option("--evaluations", help="Only steps that evaluated.")
    ] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Print the figures of each committed step: loss, evaluation, learning rate, speed."""
    call = Calls.job_metrics(job_id)
    with Client(address) as client:
        body: Any = client.fetch(call)
    if evaluations:
        body = {**body, "metrics": [m for m in body["metrics"] if m["evaluation_loss"] is not None]}
    if as_json:
        print_json(body)
        return
    steps = read(call, body)
    print_table(
        ("STEP", "LOSS", "EVALUATION", "PERPLEXITY", "LEARNING RATE", "GRADIENT NORM", "TOKENS/S"),
        map(_metrics_row, steps),
        empty="no evaluations yet" if evaluations else "no steps yet",
    )


def _metrics_row(step: StepMetrics) -> tuple[str, ...]:
    return (
        str(step.step),
        number(step.loss, ".4f") if step.skipped_layer is None else "skipped",
        number(step.evaluation_loss, ".4f"),
        number(perplexity_of(step.evaluation_loss), ".2f"),
        number(step.learning_rate, ".3g"),
        number(step.gradient_norm, ".4f"),
        number(step.tokens_per_second or None, ",.0f"),
    )


@app.command("logs")
def logs(job_id: JobId, address: Address = None, as_json: AsJson = False) -> None:
    """Print the lines that the job's engines wrote."""
    show(Calls.job_logs(job_id), address, as_json, _print_logs)


def _print_logs(lines: tuple[LogLine, ...]) -> None:
    out = console()
    for line in lines:
        out.print(Text(f"{local_time(line.time)} {line.engine_id} {line.text}"))


@app.command("events")
def events(
    job_id: JobId, follow: Follow = False, address: Address = None, as_json: AsJson = False
) -> None:
    """Print what happened to a job (JSON with --follow: one event a line)."""
    out = console()
    with Client(address) as client:
        if as_json and not follow:
            print_json(client.fetch(list_events(job_id=job_id)))
            return
        for event in client.events(job_id=job_id, follow=follow):
            if as_json:
                typer.echo(event.model_dump_json())
            else:
                out.print(event_text(event))
            if event.type in _LAST_EVENTS:
                return


_LAST_EVENTS = frozenset({"job_succeeded", "job_failed", "job_cancelled"})


@app.command("plan")
def plan(job_id: JobId, address: Address = None, as_json: AsJson = False) -> None:
    """Show which pipelines run on which nodes, and why."""

    def for_people(answer: JobPlan) -> None:
        if answer.plan is None:
            typer.echo(f"{job_id} has no plan yet")
        else:
            typer.echo(f"generation {answer.generation}: {answer.reason}")
            print_plan(answer.plan)

    show(Calls.job_plan(job_id), address, as_json, for_people)
