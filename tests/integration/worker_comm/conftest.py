"""Ranks for a test, all of them ended behind it."""

from collections.abc import Callable, Iterator

import pytest

from integration.worker_comm.ranks import Rank

StartRanks = Callable[[int], list[Rank]]


@pytest.fixture
def start_ranks() -> Iterator[StartRanks]:
    """Starts so many ranks, named 0, 1, ...; forking takes milliseconds."""
    started: list[Rank] = []

    def start(count: int) -> list[Rank]:
        ranks = [Rank(str(len(started) + index)) for index in range(count)]
        started.extend(ranks)
        return ranks

    yield start
    for rank in started:
        rank.close()
