"""Whether a job advances: pure functions of what was seen of its engines, and when."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the engines of a job were when one of them last advanced."""

    generation: int
    counts: Mapping[str, int]
    since_seconds: float


def observe_progress(
    now_seconds: float, seen: Progress | None, generation: int, counts: Mapping[str, int]
) -> Progress:
    """Return what is known after another look at the engines' progress counters.

    Another plan in force is an advance as well: the engines have just been told of it. What is not
    heard of an engine for a while is none.
    """
    if seen is None or seen.generation != generation:
        return Progress(generation=generation, counts=counts, since_seconds=now_seconds)
    known = {**seen.counts, **counts}
    if known == seen.counts:
        return seen
    return Progress(generation=generation, counts=known, since_seconds=now_seconds)


def progress_deadline_seconds(
    action_seconds: float, step_seconds: float, *, least_seconds: float
) -> float:
    """Return how long a job may make no progress: ten usual actions, and never less than a step.

    One engine that hangs makes all others wait for it, so nobody advances; while somebody does,
    nothing hangs.
    """
    return max(least_seconds, 10.0 * action_seconds, 2.0 * step_seconds)
