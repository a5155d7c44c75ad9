"""`planaria`: the command line's entry point, and how every error becomes one line.

Exit status: 0 done, 1 the job or the request failed, 2 wrong usage or a bad job file.
"""

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from planaria.cli import cluster, jobs, nodes, options, plugins, reference, submit
from planaria.cli.output import print_error
from planaria.errors import InvalidArgumentError, InvalidJobError, PlanariaError

app = typer.Typer(
    name="planaria",
    help="Training that keeps going while machines fail, leave and join.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, address: options.Address = None) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        options.hand_down(context, address)


submit.register(app)
app.add_typer(jobs.app, name="jobs")
app.add_typer(nodes.app, name="nodes")
cluster.register(app)
reference.register(app)
plugins.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        result = app(
            args=None if arguments is None else list(arguments),
            prog_name="planaria",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except InvalidJobError as error:
        for problem in error.problems:
            print_error(f"{error.source}: {problem}" if error.source else str(problem))
        return 2
    except PlanariaError as error:
        hint = ": `planaria jobs list` shows them" if error.reason == "JOB_NOT_FOUND" else ""
        print_error(error.message + hint)
        is_usage = isinstance(error, InvalidArgumentError) and "option" in error.metadata
        return 2 if is_usage else 1
    except typer.TyperException as error:
        print_error(" ".join(error.format_message().split()))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader of our output has closed it: print nothing when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        _report_defect(error)
        return 1
    return result if isinstance(result, int) else 0


def _report_defect(error: Exception) -> None:
    if os.environ.get("PLANARIA_DEBUG"):
        traceback.print_exception(error)
    else:
        print_error(
            f"a defect in planaria ({type(error).__name__}: {error}); PLANARIA_DEBUG=1 shows where"
        )
