"""How commands speak: tables for people, the REST body for programs, one line for an error."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planaria._calls import Call
from planaria._connection import read
from planaria.client import Client
from planaria.models import Job

T = TypeVar("T")

_LARGEST_EXPONENT = 700.0

STATE_STYLES = {
    "READY": "green",
    "RUNNING": "green",
    "SUCCEEDED": "bold green",
    "PENDING": "yellow",
    "STARTING": "yellow",
    "RECOVERING": "yellow",
    "WAITING": "yellow",
    "PAUSED": "yellow",
    "CORDONED": "yellow",
    "DRAINING": "yellow",
    "DRAINED": "yellow",
    "LOST": "red",
    "FAILED": "bold red",
    "CANCELLED": "red",
}


def console() -> Console:
    """Return a console on standard output; what it prints is never cut in a pipe or file."""
    made = Console(highlight=False, markup=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = 1_000
    return made


def show(
    call: Call[T], address: str | None, as_json: bool, for_people: Callable[[T], None]
) -> None:
    """Send a call and print its answer: the REST body for programs, or as `for_people` does."""
    with Client(address) as client:
        body = client.fetch(call)
    if as_json:
        print_json(body)
    else:
        for_people(read(call, body))


def show_state(call: Call[Any], address: str | None, as_json: bool, name: str) -> None:
    """Send a call that changes `name` and print its new state.

    Of the answer only the state is read: a coordinator of another version has made the change too.
    """
    with Client(address) as client:
        body = client.fetch(call)
    if as_json:
        print_json(body)
    else:
        sys.stdout.write(f"{name} {body['state']}\n")


def print_json(body: Any) -> None:
    """Print a REST body and nothing else."""
    sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def print_error(message: str) -> None:
    """Print what went wrong; the message's own first line follows `error:`."""
    sys.stderr.write(f"error: {message}\n")


def print_note(message: str) -> None:
    """Print what people should know, apart from what programs read."""
    sys.stderr.write(f"{message}\n")


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[str | Text]], *, empty: str
) -> None:
    """Print rows under headers, or a sentence when there are none."""
    table = Table(*headers, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console().print(table if table.row_count else empty)


def state_text(state: str) -> Text:
    """Return a state with its colour; the word carries the meaning."""
    return Text(state, style=STATE_STYLES.get(state, ""))


def local_time(moment: datetime | None) -> str:
    """Return a time of day for people, or a dash."""
    return moment.astimezone().strftime("%H:%M:%S") if moment else "-"


def evaluation_text(job: Job) -> str:
    """Say how the newest evaluation of a job came out; nothing before the first."""
    loss = job.evaluation_loss
    if loss is None:
        return ""
    perplexity = number(perplexity_of(loss), ".2f")
    return f"loss {loss:.4f}, perplexity {perplexity}, after {job.evaluation_step} steps"


def perplexity_of(loss: float | None) -> float | None:
    """Return the exponential of a loss, if there is one."""
    if loss is None:
        return None
    return math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf


def number(value: float | None, pattern: str) -> str:
    """Format a number that may be absent."""
    return "-" if value is None else format(value, pattern)
