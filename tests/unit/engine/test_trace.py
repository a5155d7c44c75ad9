"""The trace: what an engine did, line by line; inert unless a folder is named."""

import json
from itertools import count
from pathlib import Path

from planaria_worker.engine.fence import Fence
from planaria_worker.engine.telemetry import ENVIRONMENT_VARIABLE, Stopwatch, Trace


def traced(folder: Path) -> Trace:
    return Trace.from_environment({ENVIRONMENT_VARIABLE: str(folder)}, "job/node/0/1")


def lines(folder: Path) -> list[dict[str, object]]:
    text = (folder / "job.node.0.1.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_invariant_9_spans_of_a_step_leave_no_gap(tmp_path: Path) -> None:
    now = count()
    stopwatch = Stopwatch(lambda: float(next(now)), traced(tmp_path))
    stopwatch.restart(7)
    stopwatch.lap("forward", 2)
    stopwatch.lap("wait")
    spans = lines(tmp_path)
    assert [(span["span"], span["start"], span["end"]) for span in spans] == [
        ("between", 0.0, 1.0),
        ("forward", 1.0, 2.0),
        ("wait", 2.0, 3.0),
    ]
    assert spans[1]["step"] == 7
    assert spans[1]["microbatch"] == 2


def test_waits_and_reductions_are_idle_time() -> None:
    """Idle since the last pass or update was finished; never, before the first."""
    now = count()
    stopwatch = Stopwatch(lambda: float(next(now)))
    stopwatch.lap("wait")
    assert stopwatch.idle_seconds is None
    stopwatch.lap("forward", 2)
    stopwatch.lap("wait")
    stopwatch.lap("reduce")
    assert stopwatch.idle_seconds == 3.0
    stopwatch.lap("update")
    assert stopwatch.idle_seconds == 1.0


def test_a_fence_is_traced_with_its_generation(tmp_path: Path) -> None:
    Fence(3, traced(tmp_path)).fence(4)
    (event,) = lines(tmp_path)
    assert (event["event"], event["generation"]) == ("fence", 4)


def test_without_the_variable_nothing_is_written(tmp_path: Path) -> None:
    trace = Trace.from_environment({}, str(tmp_path / "engine"))
    trace.span("forward", 0.0, 1.0)
    trace.event("commit")
    assert list(tmp_path.iterdir()) == []
