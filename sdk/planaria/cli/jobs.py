"""`planaria jobs`: what was submitted, how it goes, and why."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from planaria import tracking
from planaria._calls import Call, Calls, list_events
from planaria._connection import read
from planaria._words import counted
from planaria.cli import options
from planaria.cli.job_report import event_text
from planaria.cli.output import (
    console,
    evaluation_text,
    local_time,
    number,
    perplexity_of,
    print_json,
    print_table,
    state_text,
)
from planaria.cli.plans import print_plan
from planaria.client import Client
from planaria.models import Job, Recovery, StepMetrics

app = typer.Typer(help="What was submitted, how it goes, and why.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _list_by_default(
    context: typer.Context, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    if context.invoked_subcommand is None:
        list_jobs(address, as_json)
    else:
        options.hand_down(context, address, as_json=as_json)


@app.command("list")
def list_jobs(address: options.Address = None, as_json: options.AsJson = False) -> None:
    """List the jobs."""
    call = Calls.list_jobs()
    with Client(address) as client:
        body = client.fetch(call)
    if as_json:
        print_json(body)
        return
    print_table(
        ("JOB", "NAME", "STATE", "STEP", "LOSS", "TOKENS/S", "SUBMITTED"),
        (_row(job) for job in read(call, body)),
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
def track(job_id: options.JobId, address: options.Address = None) -> None:
    """Write the steps of a job to what its file names under `metrics`, until it ends."""
    with Client(address) as client:
        count = tracking.track(client, client.get_job(job_id))
    typer.echo(f"{count} steps written")


@app.command("get")
def get(
    job_id: options.JobId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """Show a job and the failures it has lived through."""
    call = Calls.get_job(job_id)
    with Client(address) as client:
        body = client.fetch(call)
        if as_json:
            print_json(body)
            return
        _print_job(read(call, body), client.job_recoveries(job_id))


def _print_job(job: Job, recoveries: tuple[Recovery, ...]) -> None:
    facts: dict[str, str | Text] = {
        "job": f"{job.id} ({job.name})",
        "state": state_text(job.state),
        "waits for": job.waiting_reason,
        "step": f"{job.step} of {job.steps}",
        "loss": number(job.loss, ".4f"),
        "evaluation": evaluation_text(job),
        "generation": str(job.generation),
        "survives": "" if job.is_done else f"{counted(job.fault_tolerance, 'lost node')} at once",
        "tokens/s": number(job.tokens_per_second or None, ",.0f"),
        "goodput": number(job.goodput, ".1%"),
        "time": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in job.time_seconds.items()),
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


def _change(
    call: Callable[[str], Call[Job]], job_id: str, address: str | None, as_json: bool
) -> None:
    with Client(address) as client:
        body = client.fetch(call(job_id))
    if as_json:
        print_json(body)
        return
    typer.echo(f"{job_id} {body['state']}")


@app.command("cancel")
def cancel(
    job_id: options.JobId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """End a job; nothing is written."""
    _change(Calls.cancel_job, job_id, address, as_json)


@app.command("pause")
def pause(
    job_id: options.JobId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """Pause a job after its next commit."""
    _change(Calls.pause_job, job_id, address, as_json)


@app.command("resume")
def resume(
    job_id: options.JobId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """Continue a paused job."""
    _change(Calls.resume_job, job_id, address, as_json)


@app.command("metrics")
def metrics(
    job_id: options.JobId,
    evaluations: Annotated[
        bool, typer.Option("--evaluations", help="Only steps that evaluated.")
    ] = False,
    address: options.Address = None,
    as_json: options.AsJson = False,
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
    print_table(
        ("STEP", "LOSS", "EVALUATION", "PERPLEXITY", "LEARNING RATE", "GRADIENT NORM", "TOKENS/S"),
        (_metrics_row(step) for step in read(call, body)),
        empty="no evaluations yet" if evaluations else "no steps yet",
    )


def _metrics_row(step: StepMetrics) -> tuple[str, ...]:
    return (
        str(step.step),
        number(step.loss, ".4f"),
        number(step.evaluation_loss, ".4f"),
        number(perplexity_of(step.evaluation_loss), ".2f"),
        number(step.learning_rate, ".3g"),
        number(step.gradient_norm, ".4f"),
        number(step.tokens_per_second or None, ",.0f"),
    )


@app.command("logs")
def logs(
    job_id: options.JobId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """Print the lines that the job's engines wrote."""
    call = Calls.job_logs(job_id)
    with Client(address) as client:
        body = client.fetch(call)
    if as_json:
        print_json(body)
        return
    out = console()
    for line in read(call, body):
        out.print(Text(f"{local_time(line.time)} {line.engine_id} {line.text}"))


@app.command("events")
def events(
    job_id: options.JobId,
    follow: options.Follow = False,
    address: options.Address = None,
    as_json: options.AsJson = False,
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
def plan(
    job_id: options.JobId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """Show which pipelines run on which nodes, and why."""
    call = Calls.job_plan(job_id)
    with Client(address) as client:
        body: Any = client.fetch(call)
    if as_json:
        print_json(body)
        return
    answer = read(call, body)
    if answer.plan is None:
        typer.echo(f"{job_id} has no plan yet")
        return
    typer.echo(f"generation {answer.generation}: {answer.reason}")
    print_plan(answer.plan)
