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
def _runs_by_speed(
    seconds: float, uses: Int64Array, costs: Float64Array, caps: Int64Array, runs: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Fill runs[speed, option] and return which options are worth trying at each speed.

    The second array counts them. With one kind of node a larger template that runs no more than a
    smaller one is never needed; with several kinds only what runs nothing is left out.
    """
    num_speeds, num_options = runs.shape
    one_kind = uses.shape[1] == 1
    useful = np.empty((num_speeds, num_options), dtype=np.int64)
    num_useful = np.zeros(num_speeds, dtype=np.int64)
    for speed in range(num_speeds):
        count, last_runs = 0, 0
        for option in range(num_options):
            cost = costs[speed, option]
            here = runs_within(seconds, cost[0], cost[1], caps[option])
            runs[speed, option] = here
            if here > last_runs or (here > 0 and not one_kind):
                if one_kind and count and uses[option, 0] == uses[useful[speed, count - 1], 0]:
                    count -= 1
                useful[speed, count] = option
                count, last_runs = count + 1, here
        num_useful[speed] = count
    return useful, num_useful


@compiled
def _fill_table(
    runs: Int64Array,
    useful: Int64Array,
    num_useful: Int64Array,
    uses: Int64Array,
    steps: Int64Array,
    counts: Int64Array,
    speed_of: Int64Array,
    table: Int64Array,
    choice: Int64Array,
) -> None:
    """Fill table[k, v]: most microbatches of at least k options on the nodes v, -1 for none.

    `choice[k, v]` is the last option taken, -1 for none, -2 - kind for "as with one node of this
    kind less". Every option takes the slowest nodes of v.
    """
    num_kinds = counts.shape[1]
    for k in range(len(table)):
        for v in range(len(counts)):
            best, chosen = 0 if k == 0 else -1, -1
            first_speed = speed_of[0, counts[v, 0]] if num_kinds == 1 else 0
            for kind in range(num_kinds):
                if counts[v, kind] and table[k, v - steps[kind]] >= best:
                    best, chosen = table[k, v - steps[kind]], -2 - kind
            for u in range(num_useful[first_speed]):
                option, speed, left, enough = useful[first_speed, u], first_speed, v, True
                for kind in range(num_kinds):
                    used = uses[option, kind]
                    if used > counts[v, kind]:
                        enough = False
                        break
                    if used:
                        speed = max(speed, speed_of[kind, counts[v, kind]])
                        left -= used * steps[kind]
                if not enough:
                    if num_kinds == 1:
                        break
                    continue
                rest = table[max(k - 1, 0), left]
                if runs[speed, option] and rest >= 0 and rest + runs[speed, option] > best:
                    best, chosen = rest + runs[speed, option], option
            table[k, v], choice[k, v] = best, chosen


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
def _read_choice(
    choice: Int64Array, v: int, min_options: int, uses: Int64Array, steps: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the options that lead to table[min_options, v], and for each its last nodes."""
    taken = np.empty(len(choice[0]), dtype=np.int64)
    where = np.empty(len(choice[0]), dtype=np.int64)
    count, k = 0, min_options
    while choice[k, v] != -1:
        option = choice[k, v]
        if option < -1:
            v -= steps[-2 - option]
            continue
        taken[count], where[count] = option, v
        for kind in range(len(steps)):
            v -= uses[option, kind] * steps[kind]
        count, k = count + 1, max(k - 1, 0)
    return taken[:count].copy(), where[:count].copy()


@compiled
def search(
    uses: Int64Array,
    costs: Float64Array,
    caps: Int64Array,
    steps: Int64Array,
    counts: Int64Array,
    speed_of: Int64Array,
    groups: Int64Array,
    group_costs: Float64Array,
    group_caps: Int64Array,
    min_options: int,
    num_microbatches: int,
    limit_seconds: float,
) -> tuple[float, Int64Array, Int64Array, Int64Array]:
    """Find the least T within which all microbatches run.

    Args:
        uses: [option, kind] nodes; options are sorted by it.
        costs: [speed, option, 2] a and b in seconds, the fastest speed first.
        caps: [option] most microbatches.
        steps: [kind] how far one node less of a kind is in `counts`.
        counts: [v, kind] nodes of v, of each kind the fastest ones; the last v has all nodes.
        speed_of: [kind, n] the speed of the n-th fastest node of a kind; 0 for n = 0.
        groups: [group + 1] where each group's members begin and end.
        group_costs: [member, 2].
        group_caps: [member].
        min_options: the fewest options to take.
        num_microbatches: M.
        limit_seconds: no larger T is of interest.

    Returns:
        T, or -1.0 when nothing runs them in time; the member of each group; the options taken, one
        entry per pipeline, on the fewest nodes possible; for each of these the v that it ends.
    """
    table = np.empty((min_options + 1, len(counts)), dtype=np.int64)
    choice = np.empty((min_options + 1, len(counts)), dtype=np.int64)
    members = np.empty(len(groups) - 1, dtype=np.int64)
    runs = np.empty(costs.shape[:2], dtype=np.int64)
    all_costs = np.concatenate((costs.reshape((-1, 2)), group_costs))
    all_caps = np.concatenate((np.empty(0, dtype=np.int64), group_caps))
    for _ in range(costs.shape[0]):
        all_caps = np.concatenate((caps, all_caps))

    high, low, feasible = _largest_value(limit_seconds, all_costs, all_caps), -1.0, False
    seconds = high
    while True:
        running = _group_runs(seconds, groups, group_costs, group_caps, members)
        fits = False
        if running >= 0:
            useful, num_useful = _runs_by_speed(seconds, uses, costs, caps, runs)
            _fill_table(runs, useful, num_useful, uses, steps, counts, speed_of, table, choice)
            fits = table[min_options, -1] >= max(num_microbatches - running, 0)
        if fits:
            feasible, high = True, seconds
        elif not feasible:
            none = np.empty(0, dtype=np.int64)
            return -1.0, members, none, none
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
    useful, num_useful = _runs_by_speed(high, uses, costs, caps, runs)
    _fill_table(runs, useful, num_useful, uses, steps, counts, speed_of, table, choice)
    fewest = _fewest_nodes(table[min_options], counts, max(num_microbatches - running, 0))
    taken, where = _read_choice(choice, fewest, min_options, uses, steps)
    return high, members, taken, where


@compiled
def _fewest_nodes(row: Int64Array, counts: Int64Array, needed: int) -> int:
    """Return the first v of fewest nodes that runs `needed` microbatches."""
    fewest = len(row) - 1
    for v in range(len(row) - 1, -1, -1):
        if row[v] >= needed and counts[v].sum() <= counts[fewest].sum():
            fewest = v
    return fewest


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
