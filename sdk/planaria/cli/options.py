"""Options and arguments that several commands share."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from planaria.errors import InvalidArgumentError

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="URL",
        help="The coordinator. Default: PLANARIA_ADDRESS, else the cluster started here by `up`.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the REST body and nothing else.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
NodeId = Annotated[str, typer.Argument(metavar="NODE", help="The node's id.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow it until it ends.")]


def list_by_default(app: typer.Typer, list_all: Callable[[str | None, bool], None]) -> None:
    """Let a group of commands list what it is about when no subcommand is given."""

    @app.callback(invoke_without_command=True)
    def run(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
        if context.invoked_subcommand is None:
            list_all(address, as_json)
        else:
            hand_down(context, address, as_json=as_json)


def hand_down(context: typer.Context, address: str | None, *, as_json: bool = False) -> None:
    """Let subcommands take an address that stands before them; their own one wins.

    Raises:
        InvalidArgumentError: --json stands before the subcommand, which alone knows what it prints.
    """
    if as_json:
        raise InvalidArgumentError(
            "--json: belongs after the subcommand",
            reason="INVALID_ARGUMENT",
            metadata={"option": "--json"},
        )
    if address:
        context.default_map = _with_default(context.command, address)


def _with_default(command: object, address: str) -> dict[str, Any]:
    """Return the address as the default of a command and of all commands below it."""
    commands: Mapping[str, object] = getattr(command, "commands", {})
    return {
        "address": address,
        **{name: _with_default(below, address) for name, below in commands.items()},
    }
