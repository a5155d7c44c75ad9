"""The template search: a dynamic programme, as loops over arrays (planning.md 3).

It cuts the model from its end towards its start. A *label* is one way to run the layers from some
layer to the end; of all ways with the same layers, nodes and accelerators used on the front node,
only those survive that no other beats in all of: sum of stage times, slowest stage, microbatches
that fit, and, where memory can bind, number of stages (fewer to the end means more that fit ahead).
Every one of them only worsens when a stage is put in front, so nothing optimal is ever lost.

Labels are rows of one array. Label 0 runs nothing: every chain ends there.
"""

import numpy as np

from planaria_planner.compiled import compiled
from planaria_planner.templates.cost_tables import CostTables, Int64Array

UNBOUNDED = 1 << 62
"""The microbatches that fit where memory never binds."""

# Columns of a label: sum of stage times, slowest stage, microbatches that fit, number of stages;
# then its front stage: first layer behind it, width, kind of node, whether it is the last one on
# its node; then the label behind it.
SUM, MAX, FIT, STAGES, END, WIDTH, KIND, LAST_ON_NODE, PARENT = range(9)
COLUMNS = 9

# What is counted while it runs: layers done, and labels compared with one another.
LAYERS, WORK = range(2)


@compiled
def _beats(label: Int64Array, other: Int64Array, count_stages: bool) -> bool:
    """Whether `label` makes `other` superfluous; ties go by stages, first stage, width, kind."""
    if label[SUM] > other[SUM] or label[MAX] > other[MAX] or label[FIT] < other[FIT]:
        return False
    if count_stages and label[STAGES] > other[STAGES]:
        return False
    if label[SUM] < other[SUM] or label[MAX] < other[MAX] or label[FIT] > other[FIT]:
        return True
    for column in (STAGES, END, WIDTH, KIND, LAST_ON_NODE):
        if label[column] != other[column]:
            return bool(label[column] < other[column])
    return True


@compiled
def _copy_row(source: Int64Array, i: int, target: Int64Array, j: int) -> None:
    """Copy row i to row j; by element, since numba takes seconds to compile slices."""
    for column in range(source.shape[1]):
        target[j, column] = source[i, column]


@compiled
def _insert(front: Int64Array, size: int, labels: Int64Array, row: int, count_stages: bool) -> int:
    """Put a label into a front unless it is beaten, drop those it beats; return the new size."""
    label = labels[row]
    for i in range(size):
        if _beats(front[i], label, count_stages):
            return size
    kept = 0
    for i in range(size):
        if not _beats(label, front[i], count_stages):
            if kept != i:
                _copy_row(front, i, front, kept)
            kept += 1
    _copy_row(labels, row, front, kept)
    return kept + 1


@compiled
def _room(array: Int64Array, size: int) -> Int64Array:
    """Return `array` with room for at least one more row after `size`."""
    if size < len(array):
        return array
    larger = np.empty((2 * len(array), array.shape[1]), dtype=np.int64)
    for row in range(size):
        _copy_row(array, row, larger, row)
    return larger


@compiled
def _microbatches_that_fit(
    state_bytes: int, activation_bytes: int, memory_bytes: int, stages: int
) -> int:
    if state_bytes + stages * activation_bytes <= memory_bytes:
        return UNBOUNDED
    return (memory_bytes - state_bytes) // activation_bytes if activation_bytes > 0 else 0


@compiled
def _memory_can_bind(tables: CostTables) -> bool:
    """Whether some stage fits with one microbatch in flight but not with the most there can be."""
    num_layers = len(tables.state) - 1
    for kind in range(len(tables.memory)):
        for g in tables.widths:
            memory_bytes = tables.memory[kind] * g
            if g > tables.accelerators[kind]:
                break
            for i in range(num_layers):
                for j in range(i + 1, num_layers + 1):
                    state_bytes = tables.state[j] - tables.state[i]
                    activation_bytes = tables.activation[j] - tables.activation[i]
                    if state_bytes + activation_bytes > memory_bytes:
                        break
                    if state_bytes + (1 + num_layers - j) * activation_bytes > memory_bytes:
                        return True
    return False


@compiled
def _put_in_front(
    tables: CostTables, i: int, q: int, kind: int, rest: Int64Array, label: Int64Array
) -> None:
    """Complete a label, its END and LAST_ON_NODE given: a stage from layer i, of the q-th width."""
    j, g = label[END], tables.widths[q]
    seconds = tables.compute[kind, q, j] - tables.compute[kind, q, i]
    seconds += tables.inter[j] if label[LAST_ON_NODE] else tables.intra[j]
    label[WIDTH], label[KIND] = g, kind
    label[SUM] = rest[SUM] + seconds + (tables.sync[q, j] if i == 0 else 0)
    label[MAX] = max(rest[MAX], seconds)
    label[STAGES] = rest[STAGES] + 1
    label[FIT] = min(
        rest[FIT],
        _microbatches_that_fit(
            tables.state[j] - tables.state[i],
            tables.activation[j] - tables.activation[i],
            tables.memory[kind] * g,
            label[STAGES],
        ),
    )


@compiled
def _front_of(
    tables: CostTables,
    i: int,
    v: int,
    kind: int,
    used: int,
    behind: int,
    labels: Int64Array,
    opened: Int64Array,
    closed: Int64Array,
    closed_ids: Int64Array,
    count_stages: bool,
    front: Int64Array,
    done: Int64Array,
) -> tuple[Int64Array, int]:
    """Gather the ways to run the layers from i on the nodes v, with `used` accelerators in front.

    The stage in front is either the last one of a node of its own, ahead of the nodes `behind`, or
    stands ahead of a stage on the same node.
    """
    num_layers, size = len(tables.state) - 1, 0
    labels_here = np.empty((1, COLUMNS), dtype=np.int64)
    label = labels_here[0]
    for q in range(len(tables.widths)):
        g = tables.widths[q]
        if g > used:
            break
        label[LAST_ON_NODE] = g == used
        for j in range(i + 1, num_layers + 1):
            bytes_of_one = (tables.state[j] - tables.state[i]) + (
                tables.activation[j] - tables.activation[i]
            )
            if bytes_of_one > tables.memory[kind] * g:
                break
            label[END] = j
            if g == used:
                first, last = closed[j, behind, 0], closed[j, behind, 1]
            else:
                first = opened[j, v, kind, used - g, 0]
                last = opened[j, v, kind, used - g, 1]
            for index in range(first, last):
                label[PARENT] = closed_ids[index, 0] if g == used else index
                _put_in_front(tables, i, q, kind, labels[label[PARENT]], label)
                front = _room(front, size)
                done[WORK] += size + 1
                size = _insert(front, size, labels_here, 0, count_stages)
    return front, size


@compiled
def _append(front: Int64Array, size: int, labels: Int64Array, num_labels: int) -> Int64Array:
    """Return `labels` with those of a front behind them."""
    for row in range(size):
        labels = _room(labels, num_labels + row)
        _copy_row(front, row, labels, num_labels + row)
    return labels


@compiled
def _gather_best(
    front: Int64Array,
    size: int,
    first_label: int,
    best: Int64Array,
    num_best: int,
    count_stages: bool,
) -> tuple[Int64Array, int]:
    """Put a front among the best over kind and accelerators; its labels begin at `first_label`.

    Rows of `best` name the label that they stand for as their parent.
    """
    for row in range(size):
        front[row, PARENT] = first_label + row
        best = _room(best, num_best)
        num_best = _insert(best, num_best, front, row, count_stages)
    return best, num_best


@compiled
def _without_layers(
    tables: CostTables, num_counts: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return the tables before the last layer: one label, of no layer on no node."""
    num_layers, num_kinds = len(tables.state) - 1, len(tables.memory)
    most_accelerators = 0
    for accelerators in tables.accelerators:
        most_accelerators = max(most_accelerators, accelerators)
    labels = np.zeros((4096, COLUMNS), dtype=np.int64)
    labels[0, FIT] = UNBOUNDED
    # Labels by front layer, nodes, kind of the front node and its accelerators used: [first, last).
    shape = (num_layers + 1, num_counts, num_kinds, most_accelerators + 1, 2)
    opened = np.zeros(shape, dtype=np.int64)
    # The best of them over kind and accelerators: a range of rows of `closed_ids`.
    closed = np.zeros((num_layers + 1, num_counts, 2), dtype=np.int64)
    closed[num_layers, 0, 1] = 1
    closed_ids = np.zeros((4096, 1), dtype=np.int64)
    return labels, opened, closed, closed_ids


@compiled
def pareto_fronts(
    tables: CostTables,
    without: Int64Array,
    num_nodes: Int64Array,
    done: Int64Array,
    most_work: int,
) -> tuple[Int64Array, Int64Array]:
    """Return every undominated partition of the whole model for every node count.

    Args:
        tables: the cost model.
        without: [count, kind] index of the count with one node of the kind less, or -1; count 0
            is no node at all.
        num_nodes: [count] nodes in all.
        done: LAYERS is increased after each layer, for progress, WORK with each comparison.
        most_work: give up when WORK is more than that.

    Returns:
        The labels, [label, column]; and the ids of those that are complete, none when given up.
    """
    num_layers, num_counts, num_kinds = len(tables.state) - 1, len(without), len(tables.memory)
    count_stages = _memory_can_bind(tables)
    labels, opened, closed, closed_ids = _without_layers(tables, num_counts)
    num_labels, num_closed = 1, 1
    front = np.empty((256, COLUMNS), dtype=np.int64)
    best = np.empty((256, COLUMNS), dtype=np.int64)

    for i in range(num_layers - 1, -1, -1):
        for v in range(1, num_counts):
            if num_nodes[v] > num_layers - i:
                continue
            num_best = 0
            for kind in range(num_kinds):
                behind = without[v, kind]
                if behind < 0:
                    continue
                for used in range(1, tables.accelerators[kind] + 1):
                    front, size = _front_of(
                        tables, i, v, kind, used, behind,
                        labels, opened, closed, closed_ids, count_stages, front, done,
                    )  # fmt: skip
                    opened[i, v, kind, used, 0] = num_labels
                    labels = _append(front, size, labels, num_labels)
                    best, num_best = _gather_best(
                        front, size, num_labels, best, num_best, count_stages
                    )
                    num_labels += size
                    opened[i, v, kind, used, 1] = num_labels
            closed[i, v, 0] = num_closed
            for row in range(num_best):
                closed_ids = _room(closed_ids, num_closed)
                closed_ids[num_closed, 0] = best[row, PARENT]
                num_closed += 1
            closed[i, v, 1] = num_closed
            if done[WORK] > most_work:
                return labels[:0], closed_ids[:0, 0]
        done[LAYERS] += 1
    first_complete = closed[0, 1, 0] if num_counts > 1 else num_closed
    return labels[:num_labels], closed_ids[first_complete:num_closed, 0]
