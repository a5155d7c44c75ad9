"""`planaria submit`: start a job, ask what it would do, or watch it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from planaria import tracking
from planaria._calls import Calls
from planaria._connection import read
from planaria.aio import AsyncClient
from planaria.cli import options
from planaria.cli.job_report import JobReport, Say
from planaria.cli.output import console, print_error, print_json, print_note, show
from planaria.cli.plans import print_plan
from planaria.client import Client
from planaria.errors import InvalidArgumentError
from planaria.job import ImportedSpec, JobSpec
from planaria.job_file import load_job_file, parse_job
from planaria.models import DryRun, Job

_TRACKING_SECONDS = 30.0
"""How long a job's last metrics may take to be written after its end."""


def register(app: typer.Typer) -> None:
    app.command("submit", help="Start a job and print its id.")(submit)


def submit(
    path: Annotated[
        Path | None, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="JOB",
            help="Continue from the newest checkpoint of this job; with its job file, if none is "
            "given.",
        ),
    ] = None,
    follow: options.Follow = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan; start nothing.")
    ] = False,
    address: options.Address = None,
    as_json: options.AsJson = False,
) -> None:
    spec = _spec(path, resume, address)
    if dry_run:
        call = Calls.plan(spec, resume_job_id=resume)
        show(call, address, as_json, partial(_print_dry_run, spec))
        return
    if follow:
        tracking.require_installed(spec.metrics)
    submission = Calls.submit(spec, resume_job_id=resume)
    with Client(address) as client:
        body = client.fetch(submission)
    job = read(submission, body)
    if not as_json:
        _tell_beginning(job)
    if not follow:
        if spec.metrics is not None and not as_json:
            print_note(f"`planaria jobs track {job.id}` writes its metrics")
        print_json(body) if as_json else typer.echo(job.id)
        return
    if not as_json:
        typer.echo(job.id)
    with _tracking(address, spec, job):
        _follow(address, job.id, as_json)


@contextmanager
def _tracking(address: str | None, spec: JobSpec, job: Job) -> Iterator[None]:
    """Write the job's metrics meanwhile; what goes wrong with that is only reported."""
    if spec.metrics is None:
        yield
        return

    def run() -> None:
        try:
            with Client(address) as client:
                tracking.track(client, job)
        except Exception as error:  # whatever a tracker's library raises
            print_error(f"metrics are not written any more: {error}")

    thread = threading.Thread(target=run, name="tracking", daemon=True)
    thread.start()
    yield
    thread.join(_TRACKING_SECONDS)


def _spec(path: Path | None, resume: str | None, address: str | None) -> JobSpec:
    """What to train: as a job file says, or as the job that is gone on from.

    Raises:
        InvalidArgumentError: neither is given.
    """
    if path is not None:
        return load_job_file(path)
    if resume is None:
        raise InvalidArgumentError(
            "JOB.yaml: give a job file, or --resume JOB to continue an earlier job",
            reason="INVALID_ARGUMENT",
            metadata={"option": "JOB.yaml"},
        )
    with Client(address) as client:
        return parse_job(client.get_job(resume).spec, source=resume)


def _tell_beginning(job: Job) -> None:
    init_from = job.spec.get("init_from")
    if init_from is not None:
        print_note(f"training begins from {init_from}")


def _print_dry_run(spec: JobSpec, answer: DryRun) -> None:
    _tell_beginning(answer.job)
    plan = answer.plan
    if plan is None and isinstance(spec.model, ImportedSpec):
        typer.echo("the first engines build the model; only then its layers are known")
    elif plan is None:
        needed = spec.resources.min_nodes
        typer.echo(f"too few nodes are ready for a plan: the job would wait for {needed}")
    else:
        print_plan(plan)


def _follow(address: str | None, job_id: str, as_json: bool) -> None:
    out = console()
    say: Say = (lambda _line: None) if as_json else out.print
    try:
        job, body = asyncio.run(_tell(address, job_id, say))
    except KeyboardInterrupt:
        print_error(f"stopped watching; the job continues: `planaria jobs get {job_id}`")
        raise
    if as_json:
        print_json(body)
    job.raise_unless_succeeded()
    if not as_json:
        out.print(f"final digest {job.final_digest}")


async def _tell(address: str | None, job_id: str, say: Say) -> tuple[Job, object]:
    async with AsyncClient(address) as client:
        await JobReport(client, job_id, say).tell()
        call = Calls.get_job(job_id)
        body = await client.fetch(call)
        return read(call, body), body
