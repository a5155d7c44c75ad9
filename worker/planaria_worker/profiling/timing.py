"""Several measurements of one thing as a median and its spread."""

import statistics
from collections.abc import Sequence

from planaria_common.measurement import Timing


def timing(samples: Sequence[float]) -> Timing:
    """The median, and the distance between the quartiles as a part of it; one sample has none."""
    median = statistics.median(samples)
    if len(samples) < 2 or not median:
        return Timing(median_seconds=median, spread=0.0)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median_seconds=median, spread=(high - low) / median)
