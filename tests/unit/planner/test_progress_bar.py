"""What takes its time says so on a terminal, and nowhere else."""

import io

import pytest
from rich.console import Console

from planaria_planner.display import progress_bar as module
from planaria_planner.display.progress_bar import progress_bar


def drawn(*, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with progress_bar("planning", lambda: 0.25, console):
        pass
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_long_task_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
    text = drawn(terminal=True)
    assert "planning" in text
    assert "25%" in text


def test_a_short_task_shows_no_progress() -> None:
    assert "planning" not in drawn(terminal=True)


def test_without_a_terminal_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
    assert drawn(terminal=False) == ""
