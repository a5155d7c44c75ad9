"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

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
