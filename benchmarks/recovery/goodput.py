"""A kill every 30 seconds, a replacement 20 seconds later: how much was trained of what could be.

What could be is what the planner's optimum for the nodes alive at each moment trains in that time.
"""

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.common.jobs import job
from benchmarks.common.workbench import Workbench
from benchmarks.recovery.anatomy import (
    NUM_STEPS_BEFORE,
    commit_generations,
    commit_times,
    steady_step_seconds,
)
from benchmarks.recovery.kills import MANY_STEPS, NUM_NODES

KILL_INTERVAL_SECONDS = 30.0
REPLACEMENT_DELAY_SECONDS = 20.0
_SETTLING_STEPS = 12
_NUM_OPTIMA = 2
"""Jobs of which the quicker counts, and the run itself if its own undisturbed steps are quicker:
plans that cost the same by a hair may differ when they run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From a moment on, so many nodes are alive."""

    at: float
    num_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """An undisturbed step of the planner's plan for so many nodes."""

    measured_step_seconds: float
    predicted_step_seconds: float


def measure_goodput(bench: Workbench, *, num_kills: int, seed: int) -> dict[str, Any]:
    """Train while nodes die and come, and return all figures."""
    bench.wait_until_quiet()
    optima = {
        n: [_optimum(bench, n, seed=seed) for _ in range(_NUM_OPTIMA)]
        for n in (NUM_NODES - 1, NUM_NODES)
    }
    predicted = {n: min(each.predicted_step_seconds for each in of) for n, of in optima.items()}
    run = bench.train(job("paced", bench.text, steps=MANY_STEPS, seed=seed))
    run.wait_until_whole(NUM_NODES, num_steps=_SETTLING_STEPS)
    start = time.perf_counter()
    changes = [Change(at=start, num_nodes=NUM_NODES)]
    rng = random.Random(seed)
    for number in range(num_kills):
        due = start + number * KILL_INTERVAL_SECONDS
        _sleep_until(due)
        hurt = run.kill(rng.choice(sorted(bench.cluster.nodes)))
        changes.append(Change(at=hurt.at, num_nodes=NUM_NODES - 1))
        _sleep_until(due + REPLACEMENT_DELAY_SECONDS)
        bench.add_node()
        bench.cluster.wait_for_nodes(NUM_NODES)
        changes.append(Change(at=time.perf_counter(), num_nodes=NUM_NODES))
        print(f"goodput: kill {number + 1} of {num_kills}", flush=True)
    _sleep_until(start + num_kills * KILL_INTERVAL_SECONDS)
    end = time.perf_counter()
    commits = commit_times(run.traces)
    trained = sum(start < at <= end for at in commits.values())
    seconds = end - start
    within = calm_step_seconds(commits, commit_generations(run.traces), changes, end)
    run.cancel()
    measured = {
        n: min(within.get(n, math.inf), *(each.measured_step_seconds for each in of))
        for n, of in optima.items()
    }
    return {
        "computation": "paced",
        "seed": seed,
        "seconds": seconds,
        "steps": trained,
        "kills": num_kills,
        "step_seconds_measured": measured,
        "step_seconds_within_run": within,
        "step_seconds_predicted": predicted,
        "goodput_of_measured_optimum": trained / possible_steps(changes, end, measured),
        "goodput_of_predicted_optimum": trained / possible_steps(changes, end, predicted),
        "plain_ratio": trained / (seconds / measured[NUM_NODES]),
    }


def possible_steps(changes: Sequence[Change], end: float, step_seconds: dict[int, float]) -> float:
    """Return how many steps could have been trained.

    Args:
        changes: how many nodes are alive from when on, in order of time.
        end: of the last stretch.
        step_seconds: of the best plan, by number of nodes.
    """
    return sum(
        (until - change.at) / step_seconds[change.num_nodes]
        for change, until in _stretches(changes, end)
    )


def calm_step_seconds(
    commits: Mapping[int, float],
    generations: Mapping[int, int],
    changes: Sequence[Change],
    end: float,
) -> dict[int, float]:
    """Return the median of the steps just before the next change, by number of nodes.

    Args:
        commits: when each step was committed.
        generations: in which each step was committed.
        changes: how many nodes are alive from when on, in order of time.
        end: of the last stretch.
    """
    calm: dict[int, list[float]] = defaultdict(list)
    for change, until in _stretches(changes, end):
        steps = sorted(step for step, at in commits.items() if change.at < at <= until)
        last = steps[-NUM_STEPS_BEFORE - 1 :]
        if len({generations[step] for step in last}) == 1:
            calm[change.num_nodes] += [commits[b] - commits[a] for a, b in pairwise(last)]
    return {n: statistics.median(seconds) for n, seconds in calm.items()}


def _stretches(changes: Sequence[Change], end: float) -> list[tuple[Change, float]]:
    ends = [*(change.at for change in changes[1:]), end]
    return list(zip(changes, ends, strict=True))


def _optimum(bench: Workbench, num_nodes: int, *, seed: int) -> Optimum:
    spec = job("paced", bench.text, steps=MANY_STEPS, seed=seed, max_nodes=num_nodes)
    run = bench.train(spec)
    run.wait_until_whole(num_nodes, num_steps=_SETTLING_STEPS)
    optimum = Optimum(
        measured_step_seconds=steady_step_seconds(run.traces, _SETTLING_STEPS),
        predicted_step_seconds=run.plan.iteration_seconds,
    )
    run.cancel()
    return optimum


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))
