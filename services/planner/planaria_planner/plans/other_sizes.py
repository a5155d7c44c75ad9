"""The fastest plan of other sizes than a given one's, where nodes of a kind differ in speed.

Pipelines are contiguous among the nodes sorted by speed, as in `knapsack`. Each state keeps its two
best partial plans of different sizes: whatever is added to both, at most one of them becomes the
given plan, and the other stands for every plan that does not.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from planaria_planner.compiled import compiled
from planaria_planner.plans.knapsack import Float64Array, largest_value, next_value, runs_within
from planaria_planner.plans.knapsack_input import cost_arrays
from planaria_planner.plans.nodes import Node, in_order
from planaria_planner.templates.cost_tables import Int64Array
from planaria_planner.templates.templates import Template

# Columns of a partial plan: microbatches that it runs (-1 for no plan), the sum of its sizes' keys,
# the size taken last (-1 for none), and the flat index of the partial plan before that.
RUNS, KEY, SIZE, PARENT = range(4)
COLUMNS = 4

MOST_WORK = 4_000_000
"""Nodes times sizes times pipelines up to which there is an answer, within a second or so."""


@compiled
def _runs_by_size(
    seconds: float, costs: Float64Array, caps: Int64Array, size_of: Int64Array, runs: Int64Array
) -> None:
    """Fill runs[speed, size]: the most microbatches of any option of that size."""
    runs[:] = 0
    for speed in range(len(runs)):
        for option in range(len(size_of)):
            cost = costs[speed, option]
            here = runs_within(seconds, cost[0], cost[1], caps[option])
            runs[speed, size_of[option]] = max(runs[speed, size_of[option]], here)


@compiled
def _add(best: Int64Array, runs: int, key: int, size: int, parent: int) -> None:
    """Put a partial plan among the two best of different sizes."""
    if runs > best[0, RUNS] and key != best[0, KEY]:
        for column in range(COLUMNS):
            best[1, column] = best[0, column]
        place = 0
    elif key == best[0, KEY] and best[0, RUNS] >= 0:
        place = 0
    else:
        place = 1
    if runs > best[place, RUNS]:
        best[place, RUNS], best[place, KEY] = runs, key
        best[place, SIZE], best[place, PARENT] = size, parent


@compiled
def _fill(
    runs: Int64Array,
    sizes: Int64Array,
    keys: Int64Array,
    speed_of: Int64Array,
    exactly: bool,
    table: Int64Array,
) -> None:
    """Fill table[k, v]: two partial plans of at least, or of exactly, k pipelines on v nodes."""
    num_nodes = table.shape[1] - 1
    for k in range(len(table)):
        for v in range(num_nodes + 1):
            best = table[k, v]
            best[:] = -1
            if k == 0:
                _add(best, 0, 0, -1, -1)
            if v == 0:
                continue
            for which in range(2):
                same = table[k, v - 1, which]
                if same[RUNS] >= 0:
                    _add(best, same[RUNS], same[KEY], same[SIZE], same[PARENT])
            for size in range(len(sizes)):
                left, row, here = v - sizes[size], max(k - 1, 0), runs[speed_of[v], size]
                if left < 0 or here == 0 or (exactly and k == 0):
                    continue
                for which in range(2):
                    rest = table[row, left, which]
                    if rest[RUNS] >= 0:
                        index = 2 * (row * (num_nodes + 1) + left) + which
                        _add(best, rest[RUNS] + here, rest[KEY] + keys[size], size, index)


def work_of_other_sizes(
    numbers: Sequence[int], num_nodes: int, *, min_pipelines: int, num_microbatches: int
) -> int:
    """Return how much there is to do, to be compared with MOST_WORK."""
    exactly = _may_outnumber(numbers, num_nodes, num_microbatches)
    rows = 1 + (num_microbatches if exactly else min_pipelines)
    return num_nodes * len(numbers) * rows


def _may_outnumber(numbers: Sequence[int], num_nodes: int, num_microbatches: int) -> bool:
    """Whether there may be more pipelines than microbatches."""
    return num_microbatches < num_nodes // min(numbers)


def fastest_of_other_sizes(
    templates: Sequence[Template],
    nodes: Sequence[Node],
    sizes: Counter[int],
    *,
    min_pipelines: int,
    num_microbatches: int,
    at_least_seconds: float,
) -> tuple[float, tuple[int, ...]] | None:
    """Return the seconds of a step and the sizes of the best plan whose sizes differ from `sizes`.

    None where there is no such plan.

    Args:
        templates: what to choose from, all of one kind of node.
        nodes: nodes of that kind.
        sizes: how many pipelines of how many nodes the given plan has.
        min_pipelines: the fewest pipelines.
        num_microbatches: microbatches of one step (M).
        at_least_seconds: a step of the fastest plan of any sizes.
    """
    numbers = sorted({template.num_nodes for template in templates})
    ordered = [node.relative_speed for node in in_order(nodes)]
    speeds = list(dict.fromkeys(ordered))
    speed_of = np.array([0, *map(speeds.index, ordered)], dtype=np.int64)
    costs, caps = cost_arrays([template.cost for template in templates], num_microbatches)
    by_speed = np.stack([costs / speed for speed in speeds])
    size_of = np.array([numbers.index(t.num_nodes) for t in templates], dtype=np.int64)
    # Sums of random 63-bit keys stand for multisets of sizes; sums wrap round.
    keys = np.random.default_rng(2026).integers(1, 1 << 62, len(numbers), dtype=np.int64)
    given = np.array([sizes[number] for number in numbers], dtype=np.int64)
    given_key = int(np.sum(keys * given))

    # Where pipelines could outnumber microbatches, each of which keeps one busy, they are counted.
    exactly = _may_outnumber(numbers, len(nodes), num_microbatches)
    rows = 1 + (num_microbatches if exactly else min_pipelines)
    table = np.empty((rows, len(nodes) + 1, 2, COLUMNS), dtype=np.int64)
    runs = np.empty((len(speeds), len(numbers)), dtype=np.int64)

    def within(seconds: float) -> tuple[int, ...] | None:
        _runs_by_size(seconds, by_speed, caps, size_of, runs)
        _fill(runs, np.array(numbers, dtype=np.int64), keys, speed_of, exactly, table)
        for plan in table[min_pipelines:, -1].reshape(-1, COLUMNS):
            if plan[RUNS] >= num_microbatches and plan[KEY] != given_key:
                return _sizes_of(plan, table, numbers)
        return None

    return _fastest(within, at_least_seconds, by_speed.reshape(-1, 2), np.tile(caps, len(speeds)))


def _fastest(
    within: Callable[[float], tuple[int, ...] | None],
    at_least_seconds: float,
    costs: Float64Array,
    caps: Int64Array,
) -> tuple[float, tuple[int, ...]] | None:
    """Return the least value a + b*m within which there is a plan, and the plan's sizes."""
    as_fast = within(at_least_seconds)
    if as_fast:
        return at_least_seconds, as_fast
    low, high = at_least_seconds, largest_value(math.inf, costs, caps)
    found = within(high)
    while found and (seconds := next_value(low, high, costs, caps)) > low:
        faster = within(seconds)
        if faster:
            found, high = faster, seconds
        else:
            low = seconds
    return (high, found) if found else None


def _sizes_of(plan: Int64Array, table: Int64Array, numbers: Sequence[int]) -> tuple[int, ...]:
    rows = table.reshape(-1, COLUMNS)
    taken = []
    while plan[SIZE] >= 0:
        taken.append(numbers[plan[SIZE]])
        plan = rows[plan[PARENT]]
    return tuple(sorted(taken, reverse=True))
