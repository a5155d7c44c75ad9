"""Commands that need a part: `plan` and `profile` the planner (and to measure, the worker).

The part registers the command as an entry point of the group `planaria.commands`: a function with
typer's annotations, or a typer app. It is imported only when its command is called, so that
`planaria --help` needs none of the parts.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from planaria.errors import ConflictError

GROUP = "planaria.commands"

_KNOWN: Mapping[str, tuple[str, str]] = {
    "plan": ("planner", "Compute the plan of a model profile, without a cluster."),
    "profile": ("planner", "Measure a model's layers here, or work them out from a data sheet."),
}
"""Name of the command -> the extra that brings it, and its help."""


def register(app: typer.Typer) -> None:
    """Add the commands of the parts, installed or not."""
    installed = {point.name: point for point in entry_points(group=GROUP)}
    for name in sorted({*_KNOWN, *installed}):
        _, summary = _KNOWN.get(name, ("", "A command of another package."))
        app.command(
            name,
            help=summary,
            add_help_option=False,  # --help is the part's to answer
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        )(_forward(name, installed.get(name)))


def _forward(name: str, point: EntryPoint | None) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        result = _command(name, point)(
            args=context.args, prog_name=f"planaria {name}", standalone_mode=False
        )
        if isinstance(result, int) and result:
            raise typer.Exit(result)

    return run


def _command(name: str, point: EntryPoint | None) -> Callable[..., Any]:
    try:
        loaded = point.load() if point else None
    except ImportError:
        loaded = None
    if loaded is None:
        extra = _KNOWN.get(name, (name, ""))[0]
        raise ConflictError(
            f"`planaria {name}` needs the {extra}: pip install 'planaria[{extra}]'",
            reason="UNAVAILABLE",
            metadata={"part": extra},
        )
    if isinstance(loaded, typer.Typer):
        return loaded
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(loaded)
    return app
