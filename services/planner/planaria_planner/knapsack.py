"""Whether M microbatches fit within T seconds, and the least such T, over arrays (ALGORITHMS.md 4).

*Options* are templates to take any number of times. *Groups* are pipelines that are there already:
each runs exactly one of its members, a kept pipeline has one, a pipeline of a given size has the
whole front of that size. All are pipelines of T(M) = a + b*M with a cap on M; a and b are those of
the report, so the float comparison that decides is the comparison that a reader would make.
"""

import numpy as np
from numpy.typing import NDArray

from planaria_planner.compiled import compiled
from planaria_planner.tables import Int64Array

Float64Array = NDArray[np.float64]


@compiled
def runs_within(seconds: float, a: float, b: float, cap: int) -> int:
    """Return the most microbatches m <= cap with a + b*m <= seconds, by that very expression."""
    if a + b * cap <= seconds:
        return cap
    if a + b > seconds:
        return 0
    m = min(cap, int((seconds - a) / b))
    while a + b * (m + 1) <= seconds:
        m += 1
    while a + b * m > seconds:
        m -= 1
    return m


@compiled
def _fill_table(
    seconds: float,
    sizes: Int64Array,
    costs: Float64Array,
    caps: Int64Array,
    table: Int64Array,
    choice: Int64Array,
) -> None:
    """Fill table[k, n]: most microbatches of at least k options on at most n nodes, -1 for none.

    `choice[k, n]` is the last option taken, -1 for none, -2 for "the same as with n - 1 nodes".
    """
    num_counts, num_nodes = table.shape
    most = np.zeros(len(sizes), dtype=np.int64)
    useful = np.empty(len(sizes), dtype=np.int64)
    num_useful, last_size, last_runs = 0, 0, 0
    for option in range(len(sizes)):
        runs = runs_within(seconds, costs[option, 0], costs[option, 1], caps[option])
        if runs > last_runs:  # A larger template that runs no more is never needed.
            if num_useful and sizes[option] == last_size:
                num_useful -= 1
            useful[num_useful], most[num_useful] = option, runs
            num_useful, last_size, last_runs = num_useful + 1, sizes[option], runs
    for k in range(num_counts):
        table[k, 0], choice[k, 0] = (0 if k == 0 else -1), -1
        for n in range(1, num_nodes):
            best, chosen = table[k, n - 1], -2
            for u in range(num_useful):
                left = n - sizes[useful[u]]
                if left < 0:
                    break
                rest = table[max(k - 1, 0), left]
                if rest >= 0 and rest + most[u] > best:
                    best, chosen = rest + most[u], useful[u]
            table[k, n], choice[k, n] = best, chosen


@compiled
def _group_runs(
    seconds: float, groups: Int64Array, costs: Float64Array, caps: Int64Array, members: Int64Array
) -> int:
    """Return what all groups run within `seconds`, -1 when one runs nothing; fill `members`."""
    total = 0
    for group in range(len(groups) - 1):
        best = 0
        for member in range(groups[group], groups[group + 1]):
            runs = runs_within(seconds, costs[member, 0], costs[member, 1], caps[member])
            if runs > best:
                best, members[group] = runs, member
        if best == 0:
            return -1
        total += best
    return total


@compiled
def _values_between(
    low: float, high: float, costs: Float64Array, caps: Int64Array
) -> tuple[int, float]:
    """Count the values a + b*m in (low, high] and return the largest that is below `high`."""
    count, below = 0, low
    for i in range(len(caps)):
        a, b, cap = costs[i, 0], costs[i, 1], caps[i]
        upper, lower = runs_within(high, a, b, cap), runs_within(low, a, b, cap)
        count += upper - lower
        while upper > lower and a + b * upper >= high:
            upper -= 1
        if upper > lower:
            below = max(below, a + b * upper)
    return count, below


@compiled
def _largest_value(seconds: float, costs: Float64Array, caps: Int64Array) -> float:
    """Return the largest a + b*m that is at most `seconds`, -1 where there is none."""
    largest = -1.0
    for i in range(len(caps)):
        runs = runs_within(seconds, costs[i, 0], costs[i, 1], caps[i])
        if runs:
            largest = max(largest, costs[i, 0] + costs[i, 1] * runs)
    return largest


@compiled
def search(
    sizes: Int64Array,
    costs: Float64Array,
    caps: Int64Array,
    groups: Int64Array,
    group_costs: Float64Array,
    group_caps: Int64Array,
    num_nodes: int,
    min_options: int,
    num_microbatches: int,
) -> tuple[float, Int64Array, Int64Array]:
    """Find the least T within which all microbatches run.

    Args:
        sizes: [option] nodes; options are sorted by it.
        costs: [option, 2] a and b in seconds.
        caps: [option] most microbatches.
        groups: [group + 1] where each group's members begin and end.
        group_costs: [member, 2].
        group_caps: [member].
        num_nodes: nodes for options.
        min_options: the fewest options to take.
        num_microbatches: M.

    Returns:
        T, or -1.0 when nothing runs them; the member of each group; the options taken, one entry
        per pipeline, on the fewest nodes possible.
    """
    table = np.empty((min_options + 1, num_nodes + 1), dtype=np.int64)
    choice = np.empty((min_options + 1, num_nodes + 1), dtype=np.int64)
    members = np.empty(len(groups) - 1, dtype=np.int64)
    all_costs = np.concatenate((costs, group_costs))
    all_caps = np.concatenate((caps, group_caps))
    none = np.empty(0, dtype=np.int64)

    high, low = _largest_value(np.inf, all_costs, all_caps), -1.0
    feasible = False
    seconds = high
    while True:
        running = _group_runs(seconds, groups, group_costs, group_caps, members)
        fits = False
        if running >= 0:
            _fill_table(seconds, sizes, costs, caps, table, choice)
            fits = table[min_options, num_nodes] >= max(num_microbatches - running, 0)
        if fits:
            feasible, high = True, seconds
        elif not feasible:
            return -1.0, members, none
        else:
            low = seconds
        count, below = _values_between(low, high, all_costs, all_caps)
        if below <= low:
            break
        seconds = (
            _largest_value(low + (high - low) / 2, all_costs, all_caps) if count > 2 else below
        )
        if seconds <= low:
            seconds = below

    running = _group_runs(high, groups, group_costs, group_caps, members)
    _fill_table(high, sizes, costs, caps, table, choice)
    missing = max(num_microbatches - running, 0)
    n = 0
    while table[min_options, n] < missing:
        n += 1
    taken, num_taken, k = np.empty(n + 1, dtype=np.int64), 0, min_options
    while choice[k, n] != -1:
        if choice[k, n] == -2:
            n -= 1
        else:
            taken[num_taken] = choice[k, n]
            n, k, num_taken = n - sizes[taken[num_taken]], max(k - 1, 0), num_taken + 1
    return high, members, taken[:num_taken].copy()


@compiled
def distribute(costs: Float64Array, caps: Int64Array, num_microbatches: int) -> Int64Array:
    """Give each pipeline at least one microbatch so that the slowest ends as early as possible.

    The result is that of handing them out one by one to whoever would end first, found by search.
    Returns an empty array when the caps add up to less than `num_microbatches`, or when there are
    more pipelines than microbatches.
    """
    num_pipelines = len(caps)
    shares = np.ones(num_pipelines, dtype=np.int64)
    if caps.sum() < num_microbatches or num_microbatches < num_pipelines or caps.min() < 1:
        return np.empty(0, dtype=np.int64)
    high, low = _largest_value(np.inf, costs, caps), -1.0
    while True:
        count, below = _values_between(low, high, costs, caps)
        if below <= low:
            break
        seconds = _largest_value(low + (high - low) / 2, costs, caps) if count > 2 else below
        if seconds <= low:
            seconds = below
        total = 0
        for p in range(num_pipelines):
            total += max(1, runs_within(seconds, costs[p, 0], costs[p, 1], caps[p]))
        if total >= num_microbatches:
            high = seconds
        else:
            low = seconds
    for p in range(num_pipelines):
        shares[p] = max(1, runs_within(high, costs[p, 0], costs[p, 1], caps[p]))
    surplus = shares.sum() - num_microbatches
    for p in range(num_pipelines - 1, -1, -1):
        if surplus and shares[p] > 1 and costs[p, 0] + costs[p, 1] * shares[p] == high:
            shares[p] -= 1
            surplus -= 1
    return shares
