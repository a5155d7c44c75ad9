"""How far a command has come, on the terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PATIENCE_SECONDS = 0.7
"""What is done sooner needs no bar."""
_WIDTH = 40


@contextmanager
def progress_bar(
    what: str, fraction: Callable[[], float], console: Console | None = None
) -> Iterator[None]:
    """Show on the terminal how much is done, while the body runs and takes its time.

    Nothing is written where standard error is no terminal, and nothing is left behind.

    Args:
        what: what takes its time, in a word or two.
        fraction: says how much of it is done, from 0 to 1; asked from another thread.
        console: where to draw; standard error by default.
    """
    out = console or Console(file=sys.stderr, highlight=False)
    if not out.is_terminal:
        yield
        return
    shown_from = time.monotonic() + PATIENCE_SECONDS

    def bar() -> RenderableType:
        if time.monotonic() < shown_from:
            return Text()
        done = fraction()
        row = Table.grid(padding=(0, 1))
        row.add_row(what, ProgressBar(total=1.0, completed=done, width=_WIDTH), f"{done:.0%}")
        return row

    with Live(get_renderable=bar, console=out, transient=True, refresh_per_second=8):
        yield
