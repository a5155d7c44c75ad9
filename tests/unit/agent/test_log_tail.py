"""Lines of an engine's log arrive whole, once and in order."""

from pathlib import Path

from planaria_worker.agent.log_tail import MAX_LINES, LogTail, last_lines


def test_a_line_is_passed_on_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    tail = LogTail(path)
    assert tail.new_lines() == []
    path.write_text("one\ntw")
    assert tail.new_lines() == ["one"]
    path.write_text("one\ntwo\nthree\n")
    assert tail.new_lines() == ["two", "three"]
    assert tail.new_lines() == []


def test_many_lines_come_in_several_portions(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    lines = [f"line {number}" for number in range(MAX_LINES + 10)]
    path.write_text("\n".join(lines) + "\n")
    tail = LogTail(path)
    assert tail.new_lines() + tail.new_lines() == lines


def test_last_lines_of_a_log_that_was_never_written(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "engine.log", 5) == []
    (tmp_path / "engine.log").write_text("a\nb\nc\n")
    assert last_lines(tmp_path / "engine.log", 2) == ["b", "c"]


def test_a_file_that_cannot_be_opened_is_read_later(tmp_path: Path) -> None:
    """Such as for lack of descriptors: the session, which asks, must not end of it."""
    path = tmp_path / "engine.log"
    path.mkdir()
    tail = LogTail(path)
    assert tail.new_lines() == []
    path.rmdir()
    path.write_text("said\n")
    assert tail.new_lines() == ["said"]
