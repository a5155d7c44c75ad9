"""A job hangs when none of its engines advances."""

from planaria_coordinator.domain.engines.progress import observe_progress


def test_a_job_advances_while_any_engine_does() -> None:
    first = observe_progress(1.0, None, 1, {"a": 1, "b": 1})
    second = observe_progress(2.0, first, 1, {"a": 1, "b": 2})
    third = observe_progress(3.0, second, 1, {"a": 1, "b": 2})
    assert (first.since_seconds, second.since_seconds, third.since_seconds) == (1.0, 2.0, 2.0)
    assert observe_progress(3.5, third, 1, {"b": 2}) is third
    assert observe_progress(4.0, third, 2, {"a": 1, "b": 2}).since_seconds == 4.0
