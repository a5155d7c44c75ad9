"""A kill every 30 seconds, a replacement 20 seconds later: how much was trained of what could be.

What could be is what the planner's optimum for the nodes alive at each moment trains in that time.
Several plans may be that optimum, alike but for a hair by its formula and not when they run: each
stretch is held against undisturbed steps of the plan that it had, and, apart from that, against
those of the quickest plan that any had for as many nodes.
"""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from benchmarks.common.jobs import job
from benchmarks.common.workbench import Run, Workbench
from benchmarks.recovery.anatomy import (
    NUM_STEPS_BEFORE,
    commit_generations,
    commit_times,
    steady_step_seconds,
)
from benchmarks.recovery.kills import MANY_STEPS, NUM_NODES
from planaria.models import Plan

KILL_INTERVAL_SECONDS = 30.0
REPLACEMENT_DELAY_SECONDS = 20.0
_SETTLING_STEPS = 12
_NUM_CONTROLS = 2
"""Undisturbed jobs for each number of nodes."""
_ALIKE = 1.02
"""Plans are the same optimum whose predicted steps are within this factor of the shortest: jobs
measure their layers again, and predict the same plan's step within a percent of one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time in which the same nodes were alive.

    Attributes:
        start: seconds of CLOCK_MONOTONIC.
        calm_until: when somebody began to disturb its end: a new node that starts is not alive yet,
            and takes the processor from the others.
        end: when other nodes were alive.
        num_nodes: how many were alive.
        layout: of the plan at its end.
        predicted_step_seconds: of that plan.
    """

    start: float
    calm_until: float
    end: float
    num_nodes: int
    layout: str
    predicted_step_seconds: float


def measure_goodput(bench: Workbench, *, num_kills: int, seed: int) -> dict[str, Any]:
    """Train while nodes die and come, and return all figures."""
    bench.wait_until_quiet()
    controls = [
        _control(bench, n, seed=seed)
        for n in (NUM_NODES - 1, NUM_NODES)
        for _ in range(_NUM_CONTROLS)
    ]
    run = bench.train(job("paced", bench.text, steps=MANY_STEPS, seed=seed))
    run.wait_until_whole(NUM_NODES, num_steps=_SETTLING_STEPS)
    stretches = _disturb(bench, run, num_kills=num_kills, rng=random.Random(seed))
    start, end = stretches[0].start, stretches[-1].end
    commits = commit_times(run.traces)
    trained = sum(start < at <= end for at in commits.values())
    calm = calm_step_seconds(commits, commit_generations(run.traces), stretches)
    run.cancel()
    undisturbed = _least(
        [
            *calm.items(),
            *(((each.num_nodes, each.layout), each.step_seconds) for each in controls),
        ]
    )
    quickest = quickest_of_nodes(undisturbed)
    predicted = _least(
        [
            *((each.num_nodes, each.predicted_step_seconds) for each in controls),
            *((each.num_nodes, each.predicted_step_seconds) for each in stretches),
        ]
    )
    return {
        "computation": "paced",
        "seed": seed,
        "seconds": end - start,
        "steps": trained,
        "kills": num_kills,
        "plans": [
            {
                "nodes": num_nodes,
                "layout": layout,
                "step_seconds": seconds,
                "stretches": sum(
                    (each.num_nodes, each.layout) == (num_nodes, layout) for each in stretches
                ),
            }
            for (num_nodes, layout), seconds in sorted(undisturbed.items())
        ],
        "goodput_of_measured_optimum": trained
        / possible_steps(stretches, step_seconds_of_plans(predicted, undisturbed)),
        "goodput_of_quickest_plan": trained
        / possible_steps(stretches, lambda stretch: quickest[stretch.num_nodes]),
        "goodput_of_predicted_optimum": trained
        / possible_steps(stretches, lambda stretch: predicted[stretch.num_nodes]),
        "plain_ratio": trained / ((end - start) / quickest[NUM_NODES]),
    }


def _disturb(bench: Workbench, run: Run, *, num_kills: int, rng: random.Random) -> list[Stretch]:
    """Kill and replace nodes at their times."""
    stretches: list[Stretch] = []
    since = start = time.perf_counter()

    def ended(calm_until: float, end: float, num_nodes: int, plan: Plan) -> None:
        nonlocal since
        stretches.append(
            Stretch(
                start=since,
                calm_until=calm_until,
                end=end,
                num_nodes=num_nodes,
                layout=layout(plan),
                predicted_step_seconds=plan.iteration_seconds,
            )
        )
        since = end

    for number in range(num_kills):
        due = start + number * KILL_INTERVAL_SECONDS
        _sleep_until(due)
        hurt = run.kill(rng.choice(sorted(bench.cluster.nodes)))
        ended(hurt.at, hurt.at, NUM_NODES, hurt.plan)
        _sleep_until(due + REPLACEMENT_DELAY_SECONDS)
        plan, calm_until = run.plan, time.perf_counter()
        bench.add_node()
        bench.cluster.wait_for_nodes(NUM_NODES)
        ended(calm_until, time.perf_counter(), NUM_NODES - 1, plan)
        print(f"goodput: kill {number + 1} of {num_kills}", flush=True)
    _sleep_until(start + num_kills * KILL_INTERVAL_SECONDS)
    end = time.perf_counter()
    ended(end, end, NUM_NODES, run.plan)
    return stretches


def layout(plan: Plan) -> str:
    """Return what of a plan decides how long a step takes, whatever its nodes."""
    pipelines = [
        f"{len(pipeline.microbatches)} on {'+'.join(str(s.num_layers) for s in pipeline.stages)}"
        for pipeline in plan.pipelines
    ]
    return ", ".join(sorted(pipelines))


KeyT = TypeVar("KeyT")
Undisturbed = Mapping[tuple[int, str], float]
"""Seconds of a step where nothing disturbs it, by number of nodes alive and layout."""


def calm_step_seconds(
    commits: Mapping[int, float], generations: Mapping[int, int], stretches: Iterable[Stretch]
) -> Undisturbed:
    """Return the median of the last calm steps of stretches, unless the plan changed in them.

    Args:
        commits: when each step was committed.
        generations: in which each step was committed.
        stretches: in order of time.
    """
    calm: dict[tuple[int, str], list[float]] = defaultdict(list)
    for stretch in stretches:
        until = stretch.calm_until
        steps = sorted(step for step, at in commits.items() if stretch.start < at <= until)
        last = steps[-NUM_STEPS_BEFORE - 1 :]
        if len({generations[step] for step in last}) == 1:
            key = stretch.num_nodes, stretch.layout
            calm[key] += [commits[b] - commits[a] for a, b in pairwise(last)]
    return {key: statistics.median(seconds) for key, seconds in calm.items() if seconds}


def _least(pairs: Iterable[tuple[KeyT, float]]) -> dict[KeyT, float]:
    """Return the least seconds of each key."""
    least: dict[KeyT, float] = {}
    for key, seconds in pairs:
        least[key] = min(seconds, least.get(key, seconds))
    return least


def quickest_of_nodes(undisturbed: Undisturbed) -> dict[int, float]:
    """Return the step of the quickest plan, by number of nodes."""
    return _least((num_nodes, seconds) for (num_nodes, _), seconds in undisturbed.items())


def step_seconds_of_plans(
    predicted: Mapping[int, float], undisturbed: Undisturbed
) -> Callable[[Stretch], float]:
    """Return what says how long an undisturbed step of a stretch's own plan takes.

    A plan that is not the planner's optimum for the nodes alive, or that never ran undisturbed, is
    no excuse: then it is the step of the quickest one.

    Args:
        predicted: seconds of a step of the planner's optimum, by number of nodes.
        undisturbed: as measured.
    """
    quickest = quickest_of_nodes(undisturbed)

    def step_seconds(stretch: Stretch) -> float:
        least = quickest[stretch.num_nodes]
        if stretch.predicted_step_seconds > _ALIKE * predicted[stretch.num_nodes]:
            return least
        return undisturbed.get((stretch.num_nodes, stretch.layout), least)

    return step_seconds


def possible_steps(stretches: Iterable[Stretch], step_seconds: Callable[[Stretch], float]) -> float:
    """Return how many steps could have been trained."""
    return sum((each.end - each.start) / step_seconds(each) for each in stretches)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Control:
    """A job without a failure."""

    num_nodes: int
    layout: str
    step_seconds: float
    predicted_step_seconds: float


def _control(bench: Workbench, num_nodes: int, *, seed: int) -> _Control:
    spec = job("paced", bench.text, steps=MANY_STEPS, seed=seed, max_nodes=num_nodes)
    run = bench.train(spec)
    run.wait_until_whole(num_nodes, num_steps=_SETTLING_STEPS)
    seconds = steady_step_seconds(run.traces, _SETTLING_STEPS)
    plan = run.plan
    run.cancel()
    return _Control(
        num_nodes=num_nodes,
        layout=layout(plan),
        step_seconds=seconds,
        predicted_step_seconds=plan.iteration_seconds,
    )


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))
