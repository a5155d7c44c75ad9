"""`planaria submit`: start a job, ask what it would do, or watch it."""

import asyncio
from typing import Annotated

import typer

from planaria import _calls
from planaria._connection import read
from planaria.aio import AsyncClient
from planaria.cli import options
from planaria.cli.output import console, print_error, print_json
from planaria.cli.plans import print_plan
from planaria.cli.story import Say, Story
from planaria.client import Client
from planaria.job import ImportedSpec, JobSpec
from planaria.job_file import load_job_file
from planaria.models import Job


def register(app: typer.Typer) -> None:
    app.command("submit", help="Start a job and print its id.")(submit)


def submit(
    path: options.JobFile,
    follow: options.Follow = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan; start nothing.")
    ] = False,
    address: options.Address = None,
    as_json: options.AsJson = False,
) -> None:
    spec = load_job_file(path)
    if dry_run:
        _show_plan(spec, address, as_json)
        return
    call = _calls.submit(spec)
    with Client(address) as client:
        body = client.fetch(call)
    job = read(call, body)
    if not follow:
        print_json(body) if as_json else typer.echo(job.id)
        return
    if not as_json:
        typer.echo(job.id)
    _follow(address, job.id, as_json)


def _show_plan(spec: JobSpec, address: str | None, as_json: bool) -> None:
    call = _calls.dry_run(spec)
    with Client(address) as client:
        body = client.fetch(call)
    if as_json:
        print_json(body)
        return
    plan = read(call, body).plan
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
        print_error(f"stopped watching; the job goes on: `planaria jobs get {job_id}`")
        raise
    if as_json:
        print_json(body)
    job.raise_unless_succeeded()
    if not as_json:
        out.print(f"final digest {job.final_digest}")


async def _tell(address: str | None, job_id: str, say: Say) -> tuple[Job, object]:
    async with AsyncClient(address) as client:
        await Story(client, job_id, say).tell()
        call = _calls.get_job(job_id)
        body = await client.fetch(call)
        return read(call, body), body
