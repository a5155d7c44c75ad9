"""Agents that lost their coordinator come back soon, and not all at once."""

from hypothesis import given
from hypothesis import strategies as st

from planaria_worker.agent.session import MAX_BACKOFF_SECONDS, Backoff


@given(num_failures=st.integers(1, 10_000), luck=st.floats(0, 1))
def test_pauses_are_bounded_and_never_zero(num_failures: int, luck: float) -> None:
    pause = Backoff(randomness=lambda: luck).pause_seconds(num_failures)
    assert 0 < pause <= MAX_BACKOFF_SECONDS


def test_the_first_pause_is_short() -> None:
    assert Backoff(randomness=lambda: 1.0).pause_seconds(1) <= 0.2
