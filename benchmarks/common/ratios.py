"""Ratios of times, with what chance may have made of them."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NUM_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Of two medians, or the median of ratios."""

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
    return _bootstrapped(
        statistics.median(ratios),
        lambda: statistics.median(choice.choices(ratios, k=len(ratios))),
    )


def ratio_of_medians(a: Sequence[float], b: Sequence[float], seed: int = 7) -> Ratio:
    """Compare what was measured apart, not as often; the percentile bootstrap's interval."""
    choice = random.Random(seed)

    def resampled(values: Sequence[float]) -> float:
        return statistics.median(choice.choices(values, k=len(values)))

    return _bootstrapped(
        statistics.median(a) / statistics.median(b), lambda: resampled(a) / resampled(b)
    )


def _bootstrapped(median: float, resample: Callable[[], float]) -> Ratio:
    medians = sorted(resample() for _ in range(NUM_RESAMPLES))
    return Ratio(
        median=median,
        low=medians[round(0.025 * NUM_RESAMPLES)],
        high=medians[round(0.975 * NUM_RESAMPLES) - 1],
    )
