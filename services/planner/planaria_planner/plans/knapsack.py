"""Whether M microbatches fit within T seconds, and the least such T, over arrays (planning.md 4).

*Options* are templates to take any number of times. *Groups* are pipelines that are there already:
each runs exactly one of its members, a kept pipeline has one, a pipeline of a given size has the
whole front of that size. All are pipelines of T(M) = a + b*M with a cap on M; a and b are those of
the report, so the float comparison that decides is the comparison that a reader would make.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planaria_planner.compiled import compiled
from planaria_planner.templates.cost_tables import Int64Array

Float64Array = NDArray[np.float64]


class Options(NamedTuple):
    """Templates to take any number of times; named tuples, since compiled loops take them as is.

    Attributes:
        sizes: [size, kind] nodes; of one kind in ascending order.
        size_of: [option] index of its size.
        costs: [speed, option, 2] a and b in seconds, the fastest speed first.
        caps: [speed, option] most microbatches, 0 where the option cannot run on such nodes.
    """

    sizes: Int64Array
    size_of: Int64Array
    costs: Float64Array
    caps: Int64Array


class Nodes(NamedTuple):
    """What options run on.

    Attributes:
        steps: [kind] how far one node less of a kind is in `counts`.
        counts: [v, kind] nodes of v, of each kind the fastest ones; the last v has all nodes.
        speed_of: [kind, n] the speed of the n-th fastest node of a kind; 0 for n = 0.
        within: [v] where `counts` has a single column: how many nodes an option that ends with v
            may have. The single kind may be a row of several, which no option may straddle.
    """

    steps: Int64Array
    counts: Int64Array
    speed_of: Int64Array
    within: Int64Array


class Groups(NamedTuple):
    """Pipelines that are there already.

    Attributes:
        ends: [group + 1] where each group's members begin and end.
        costs: [member, 2] a and b in seconds.
        caps: [member] most microbatches.
    """

    ends: Int64Array
    costs: Float64Array
    caps: Int64Array


class Values(NamedTuple):
    """The costs [i, 2] and caps [i] of all options and members: T is one of a + b*m."""

    costs: Float64Array
    caps: Int64Array


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
def _best_by_size(
    seconds: float, options: Options, runs: Int64Array, best: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Fill runs[speed, size] and best[speed, size], the option of that size that runs the most.

    Returns for each speed the sizes worth trying, and how many they are. With one kind of node a
    size that runs no more than a smaller one is never needed; with several kinds only sizes that
    run nothing are left out.
    """
    num_speeds, num_sizes = runs.shape
    useful = np.empty((num_speeds, num_sizes), dtype=np.int64)
    num_useful = np.zeros(num_speeds, dtype=np.int64)
    for speed in range(num_speeds):
        for size in range(num_sizes):
            runs[speed, size] = 0
        for option in range(len(options.size_of)):
            size, cost = options.size_of[option], options.costs[speed, option]
            here = runs_within(seconds, cost[0], cost[1], options.caps[speed, option])
            if here > runs[speed, size]:
                runs[speed, size], best[speed, size] = here, option
        count, most = 0, 0
        for size in range(num_sizes):
            if runs[speed, size] > most:
                useful[speed, count] = size
                count += 1
                if options.sizes.shape[1] == 1:
                    most = runs[speed, size]
        num_useful[speed] = count
    return useful, num_useful


@compiled
def _fill_table(
    runs: Int64Array,
    useful: Int64Array,
    num_useful: Int64Array,
    sizes: Int64Array,
    nodes: Nodes,
    table: Int64Array,
    choice: Int64Array,
) -> None:
    """Fill table[k, v]: most microbatches of at least k options on the nodes v, -1 for none.

    `choice[k, v]` is the size of the last option taken, -1 for none, -2 - kind for "as with one
    node of this kind less". Every option takes the slowest nodes of v.
    """
    steps, counts, speed_of = nodes.steps, nodes.counts, nodes.speed_of
    num_kinds = counts.shape[1]
    for k in range(len(table)):
        for v in range(len(counts)):
            most, chosen = 0 if k == 0 else -1, -1
            # With one kind the last node says how fast any option is; else its own nodes do.
            first_speed = speed_of[0, counts[v, 0]] if num_kinds == 1 else 0
            for kind in range(num_kinds):
                if counts[v, kind] and table[k, v - steps[kind]] >= most:
                    most, chosen = table[k, v - steps[kind]], -2 - kind
            for u in range(num_useful[first_speed]):
                size, speed, left, enough = useful[first_speed, u], first_speed, v, True
                for kind in range(num_kinds):
                    used = sizes[size, kind]
                    if used > (nodes.within[v] if num_kinds == 1 else counts[v, kind]):
                        enough = False
                        break
                    if used:
                        speed = max(speed, speed_of[kind, counts[v, kind]])
                        left -= used * steps[kind]
                if not enough:
                    if num_kinds == 1:
                        break
                    continue
                rest, here = table[max(k - 1, 0), left], runs[speed, size]
                if here and rest >= 0 and rest + here > most:
                    most, chosen = rest + here, size
            table[k, v], choice[k, v] = most, chosen


@compiled
def _group_runs(seconds: float, groups: Groups, members: Int64Array) -> int:
    """Return what all groups run within `seconds`, -1 when one runs nothing; fill `members`."""
    total = 0
    for group in range(len(groups.ends) - 1):
        best = 0
        for member in range(groups.ends[group], groups.ends[group + 1]):
            cost = groups.costs[member]
            runs = runs_within(seconds, cost[0], cost[1], groups.caps[member])
            if runs > best:
                best, members[group] = runs, member
        if best == 0:
            return -1
        total += best
    return total


@compiled
def largest_value(seconds: float, costs: Float64Array, caps: Int64Array) -> float:
    """Return the largest a + b*m that is at most `seconds`, -1 where there is none."""
    largest = -1.0
    for i in range(len(caps)):
        runs = runs_within(seconds, costs[i, 0], costs[i, 1], caps[i])
        if runs:
            largest = max(largest, costs[i, 0] + costs[i, 1] * runs)
    return largest


@compiled
def next_value(low: float, high: float, costs: Float64Array, caps: Int64Array) -> float:
    """Return a value a + b*m in (low, high), near the middle; `low` where there is none."""
    below = low
    for i in range(len(caps)):
        a, b = costs[i, 0], costs[i, 1]
        runs = runs_within(high, a, b, caps[i])
        while runs and a + b * runs >= high:
            runs -= 1
        if runs:
            below = max(below, a + b * runs)
    if below <= low:
        return low
    empty_until = low
    while True:
        middle = empty_until + (below - empty_until) / 2
        value = largest_value(middle, costs, caps)
        if value > low:
            return value
        if not empty_until < middle < below:
            return below
        empty_until = middle


@compiled
def _read_choice(
    choice: Int64Array, v: int, min_options: int, sizes: Int64Array, steps: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the sizes that lead to table[min_options, v], and for each its last nodes."""
    taken = np.empty(len(choice[0]), dtype=np.int64)
    where = np.empty(len(choice[0]), dtype=np.int64)
    count, k = 0, min_options
    while choice[k, v] != -1:
        size = choice[k, v]
        if size < -1:
            v -= steps[-2 - size]
            continue
        taken[count], where[count] = size, v
        for kind in range(len(steps)):
            v -= sizes[size, kind] * steps[kind]
        count, k = count + 1, max(k - 1, 0)
    return taken[:count], where[:count]


@compiled
def _fewest_nodes(row: Int64Array, counts: Int64Array, needed: int) -> int:
    """Return the first v of fewest nodes that runs `needed` microbatches."""
    fewest = len(row) - 1
    for v in range(len(row) - 1, -1, -1):
        nodes, least = 0, 0
        for kind in range(counts.shape[1]):
            nodes, least = nodes + counts[v, kind], least + counts[fewest, kind]
        if row[v] >= needed and nodes <= least:
            fewest = v
    return fewest


@compiled
def _fastest_nodes(
    options: Options,
    nodes: Nodes,
    best: Int64Array,
    taken: Int64Array,
    where: Int64Array,
) -> None:
    """Put in the place of each size taken the option that runs the most on its nodes."""
    for i in range(len(taken)):
        speed = 0
        for kind in range(len(nodes.steps)):
            if options.sizes[taken[i], kind]:
                speed = max(speed, nodes.speed_of[kind, nodes.counts[where[i], kind]])
        taken[i] = best[speed, taken[i]]


@compiled
def search(
    options: Options,
    nodes: Nodes,
    groups: Groups,
    values: Values,
    min_options: int,
    num_microbatches: int,
    limit_seconds: float,
) -> tuple[float, Int64Array, Int64Array, Int64Array]:
    """Find the least T within which all microbatches run.

    Args:
        options: what to choose from.
        nodes: what they run on.
        groups: what runs in any case.
        values: those of T to search.
        min_options: the fewest options to take.
        num_microbatches: M.
        limit_seconds: no larger T is of interest.

    Returns:
        T, or -1.0 when nothing runs them in time; the member of each group; the options taken, one
        entry per pipeline, on the fewest nodes possible; for each of these the v that it ends.
    """
    sizes = options.sizes
    table = np.empty((min_options + 1, len(nodes.counts)), dtype=np.int64)
    choice = np.empty_like(table)
    members = np.empty(len(groups.ends) - 1, dtype=np.int64)
    runs = np.empty((len(options.costs), len(sizes)), dtype=np.int64)
    best = np.empty_like(runs)
    high, low, feasible = largest_value(limit_seconds, values.costs, values.caps), -1.0, False
    seconds, done = high, False
    while True:
        running = _group_runs(seconds, groups, members)
        needed = max(num_microbatches - running, 0)
        if running >= 0:
            useful, num_useful = _best_by_size(seconds, options, runs, best)
            _fill_table(runs, useful, num_useful, sizes, nodes, table, choice)
        if done:
            break
        if running >= 0 and table[min_options, -1] >= needed:
            feasible, high = True, seconds
        elif feasible:
            low = seconds
        else:
            none = np.empty(0, dtype=np.int64)
            return -1.0, members, none, none
        seconds = next_value(low, high, values.costs, values.caps)
        if seconds <= low:
            seconds, done = high, True  # once more, to read off what runs then

    fewest = _fewest_nodes(table[min_options], nodes.counts, needed)
    taken, where = _read_choice(choice, fewest, min_options, sizes, nodes.steps)
    _fastest_nodes(options, nodes, best, taken, where)
    return high, members, taken, where


@compiled
def _share(seconds: float, costs: Float64Array, caps: Int64Array, shares: Int64Array) -> int:
    """Fill what each pipeline runs within `seconds`, at least one; return the sum."""
    total = 0
    for p in range(len(caps)):
        shares[p] = max(1, runs_within(seconds, costs[p, 0], costs[p, 1], caps[p]))
        total += shares[p]
    return total


@compiled
def distribute(costs: Float64Array, caps: Int64Array, num_microbatches: int) -> Int64Array:
    """Give each pipeline at least one microbatch so that the slowest ends as early as possible.

    The result is that of handing them out one by one to the pipeline that would end first, found by
    search. Returns an empty array when the caps add up to less than `num_microbatches`, or when
    there are more pipelines than microbatches.
    """
    num_pipelines, most, fewest = len(caps), 0, 1
    for cap in caps:
        most, fewest = most + cap, min(fewest, cap)
    if most < num_microbatches or num_microbatches < num_pipelines or fewest < 1:
        return np.empty(0, dtype=np.int64)
    shares = np.empty(num_pipelines, dtype=np.int64)
    high, low = largest_value(np.inf, costs, caps), -1.0
    while True:
        seconds = next_value(low, high, costs, caps)
        if seconds <= low:
            break
        if _share(seconds, costs, caps, shares) >= num_microbatches:
            high = seconds
        else:
            low = seconds
    surplus = _share(high, costs, caps, shares) - num_microbatches
    for p in range(num_pipelines - 1, -1, -1):
        # What is too many ends exactly at `high`: the last pipelines go without.
        while surplus and shares[p] > 1 and costs[p, 0] + costs[p, 1] * shares[p] == high:
            shares[p] -= 1
            surplus -= 1
    return shares
