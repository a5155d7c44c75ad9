"""Sets of moments as sorted, disjoint (start, end) pairs."""

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the moments that are in any of the intervals."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Return what lies within a window."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in cut if end > start]


def gaps(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Return the moments of a window that are in none of the intervals."""
    edges = [window[0]]
    for start, end in union(clip(intervals, window)):
        edges += [start, end]
    edges.append(window[1])
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def length(intervals: Sequence[Interval]) -> float:
    """Return the seconds in disjoint intervals."""
    return sum(end - start for start, end in intervals)
