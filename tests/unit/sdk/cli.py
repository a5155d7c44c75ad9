"""How tests run a command."""

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]
