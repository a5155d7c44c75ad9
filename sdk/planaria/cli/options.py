"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

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
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")]


def refuse_before_subcommand(address: str | None, as_json: bool) -> None:
    """Refuse options that stand where a group takes them only for its own list.

    Raises:
        InvalidArgumentError: one was given.
    """
    given = "--address" if address else "--json" if as_json else ""
    if given:
        raise InvalidArgumentError(
            f"{given}: belongs behind the subcommand",
            reason="INVALID_ARGUMENT",
            metadata={"option": given},
        )
