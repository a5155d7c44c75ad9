"""`planaria schema` and `planaria version`."""

import json
from importlib.metadata import version
from typing import Annotated, Any

import typer

from planaria._calls import Calls
from planaria.cli import options
from planaria.cli.output import print_json
from planaria.client import Client
from planaria.errors import UnavailableError
from planaria.job import JobSpec


def register(app: typer.Typer) -> None:
    app.command("schema", help="Print the JSON Schema of job files.")(print_schema)
    app.command("version", help="Print the versions of this command and of the coordinator.")(
        print_version
    )


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of job files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **JobSpec.model_json_schema(),
        "title": "Planaria job file",
    }


def print_schema() -> None:
    typer.echo(json.dumps(job_schema(), indent=2))


def print_version(
    address: options.Address = None,
    client_only: Annotated[
        bool, typer.Option("--client", help="Do not ask the coordinator.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    server: dict[str, Any] | None = None
    if not client_only:
        with Client(address) as client:
            try:
                server = client.fetch(Calls.info())
            except UnavailableError:
                server = None  # the client's own version is an answer too
    if as_json:
        print_json({"client": {"version": version("planaria")}, "server": server})
        return
    typer.echo(f"client {version('planaria')}")
    if server:
        typer.echo(f"server {server['version']} (protocol {server['protocol_version']})")
    elif not client_only:
        typer.echo("server none answers")
