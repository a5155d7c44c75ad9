"""Intervals: what was covered, and what was not."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.intervals import clip, gaps, length, union

MOMENTS = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: tuple(sorted(pair)))


@given(st.lists(MOMENTS))
def test_covered_and_uncovered_time_add_up_to_the_window(
    intervals: list[tuple[int, int]],
) -> None:
    window = (5.0, 25.0)
    covered = union(clip(intervals, window))
    assert length(covered) + length(gaps(intervals, window)) == 20.0


def test_intervals_that_touch_are_one() -> None:
    assert union([(3.0, 4.0), (1.0, 3.0), (6.0, 7.0)]) == [(1.0, 4.0), (6.0, 7.0)]
