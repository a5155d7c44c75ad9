"""Ratios of step times, with what chance may have made of them."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NUM_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median over blocks of A's step time over B's in the same block."""

    median: float
    low: float
    """Of the 95 % interval."""
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(a: Sequence[float], b: Sequence[float], seed: int = 7) -> Ratio:
    """Compare step times block by block: what the machine did meanwhile met both.

    The interval is the percentile bootstrap's over blocks.
    """
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    choice = random.Random(seed)
    medians = sorted(
        statistics.median(choice.choices(ratios, k=len(ratios))) for _ in range(NUM_RESAMPLES)
    )
    return Ratio(
        median=statistics.median(ratios),
        low=medians[round(0.025 * NUM_RESAMPLES)],
        high=medians[round(0.975 * NUM_RESAMPLES) - 1],
    )
