"""Every second of a job has one name."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria_coordinator.domain.job.time_account import Activity, TimeAccount

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Activity),
            st.floats(-50, 100),
            st.sampled_from(Activity),
            st.floats(0, 9),
        )
    )
)
def test_every_second_has_exactly_one_name(
    switches: list[tuple[Activity, float, Activity, float]],
) -> None:
    """Whatever clocks engines have, the names add up to the wall clock [9]."""
    time_account = TimeAccount(current=Activity.WAITING, since=NOON)
    for activity, offset, other, seconds in switches:
        time_account = time_account.switch(activity, NOON + timedelta(seconds=offset))
        time_account = time_account.move(activity, other, seconds)
    end = max(time_account.since, NOON + timedelta(seconds=100))
    time_account = time_account.close(end)
    totals = time_account.totals(end + timedelta(days=1))
    assert sum(totals.values()) == pytest.approx((end - NOON).total_seconds(), abs=1e-6)
    assert all(seconds >= -1e-9 for seconds in totals.values())


def test_goodput_counts_from_the_first_step() -> None:
    time_account = TimeAccount(current=Activity.WAITING, since=NOON)
    start = NOON + timedelta(seconds=30)
    time_account = time_account.switch(Activity.PRODUCTIVE, start)
    assert time_account.goodput(start + timedelta(seconds=10), None) is None
    time_account = time_account.switch(Activity.COPY, start + timedelta(seconds=8))
    assert time_account.goodput(start + timedelta(seconds=10), start) == pytest.approx(0.8)
