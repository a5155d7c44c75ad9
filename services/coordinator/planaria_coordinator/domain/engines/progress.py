"""Whether a job advances: pure functions of what was seen of its engines, and when."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the engines of a job were when one of them last advanced."""

    counts: Mapping[str, int]
    since_seconds: float


def observe_progress(
    now_seconds: float, seen: Progress | None, counts: Mapping[str, int]
) -> Progress:
    """Return what is known after another look at the engines' progress counters."""
    if seen is None or dict(seen.counts) != dict(counts):
        return Progress(counts=dict(counts), since_seconds=now_seconds)
    return seen


def progress_deadline_seconds(
    action_seconds: float, step_seconds: float, *, least_seconds: float
) -> float:
    """Return how long a job may make no progress: ten usual actions, and never less than a step.

    One engine that hangs makes all others wait for it, so nobody advances; while somebody does,
    nothing hangs.
    """
    return max(least_seconds, 10.0 * action_seconds, 2.0 * step_seconds)
