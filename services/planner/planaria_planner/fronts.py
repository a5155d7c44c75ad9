"""The dynamic programme behind the templates, as loops over arrays (ALGORITHMS.md 3).

It cuts the model from its end towards its start. A *label* is one way to run the layers from some
layer to the end; of all ways with the same layers, nodes and accelerators used on the front node,
only those survive that no other beats in all of: sum of stage times, slowest stage, microbatches
that fit, and, where memory can bind, number of stages (fewer to the end means more that fit ahead).
Every one of them only worsens when a stage is put in front, so nothing optimal is ever lost.
"""

import numpy as np

from planaria_planner.compiled import compiled
from planaria_planner.tables import CostTables, Int64Array

UNBOUNDED = 1 << 62
"""The microbatches that fit where memory never binds."""

# Columns of a label. PARENT is the label behind it, END the first layer behind its front stage.
SUM, MAX, FIT, STAGES, END, WIDTH, KIND, FRESH, PARENT = range(9)
COLUMNS = 9


@compiled
def _beats(label: Int64Array, other: Int64Array, count_stages: bool) -> bool:
    """Whether `label` makes `other` superfluous; ties go by stages, first stage, width, kind."""
    if label[SUM] > other[SUM] or label[MAX] > other[MAX] or label[FIT] < other[FIT]:
        return False
    if count_stages and label[STAGES] > other[STAGES]:
        return False
    if label[SUM] < other[SUM] or label[MAX] < other[MAX] or label[FIT] > other[FIT]:
        return True
    for column in (STAGES, END, WIDTH, KIND, FRESH):
        if label[column] != other[column]:
            return bool(label[column] < other[column])
    return True


@compiled
def _insert(front: Int64Array, size: int, label: Int64Array, count_stages: bool) -> int:
    """Put a label into a front unless it is beaten, drop those it beats; return the new size."""
    for i in range(size):
        if _beats(front[i], label, count_stages):
            return size
    kept = 0
    for i in range(size):
        if not _beats(label, front[i], count_stages):
            if kept != i:
                front[kept] = front[i]
            kept += 1
    front[kept] = label
    return kept + 1


@compiled
def _room(array: Int64Array, size: int) -> Int64Array:
    """Return `array` with room for at least one more row after `size`."""
    if size < len(array):
        return array
    larger = np.empty((2 * len(array), array.shape[1]), dtype=np.int64)
    larger[:size] = array[:size]
    return larger


@compiled
def _microbatches_that_fit(
    state_bytes: int, activation_bytes: int, memory_bytes: int, stages: int
) -> int:
    if state_bytes + stages * activation_bytes <= memory_bytes:
        return UNBOUNDED
    return (memory_bytes - state_bytes) // activation_bytes if activation_bytes > 0 else 0


@compiled
def _memory_can_bind(
    state: Int64Array,
    activation: Int64Array,
    widths: Int64Array,
    accelerators: Int64Array,
    memory: Int64Array,
) -> bool:
    """Whether some stage fits with one microbatch in flight but not with the most there can be."""
    num_layers = len(state) - 1
    for kind in range(len(memory)):
        for g in widths:
            if g > accelerators[kind]:
                break
            for i in range(num_layers):
                for j in range(i + 1, num_layers + 1):
                    states, activations = state[j] - state[i], activation[j] - activation[i]
                    if states + activations > memory[kind] * g:
                        break
                    if states + (1 + num_layers - j) * activations > memory[kind] * g:
                        return True
    return False


@compiled
def _fronts(
    compute: Int64Array,
    intra: Int64Array,
    inter: Int64Array,
    sync: Int64Array,
    state: Int64Array,
    activation: Int64Array,
    widths: Int64Array,
    accelerators: Int64Array,
    memory: Int64Array,
    without: Int64Array,
    num_nodes: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """Fill the table of fronts; see `pareto_fronts`.

    `without[v, kind]` is the index of the node count v with one node of `kind` less, -1 where v
    has none; `num_nodes[v]` is the number of nodes of v; v = 0 is no node at all.
    """
    num_layers, num_counts, num_kinds = len(state) - 1, len(without), len(memory)
    widest = int(accelerators.max())
    count_stages = _memory_can_bind(state, activation, widths, accelerators, memory)
    labels, num_labels = np.empty((4096, COLUMNS), dtype=np.int64), 0
    # Labels by front layer, nodes, kind of the front node and its accelerators used: [first, last).
    opened = np.zeros((num_layers, num_counts, num_kinds, widest + 1, 2), dtype=np.int64)
    # The best of these over kind and accelerators: a range of rows of `closed_ids`.
    closed = np.zeros((num_layers, num_counts, 2), dtype=np.int64)
    closed_ids, num_closed = np.empty((4096, 1), dtype=np.int64), 0
    front, size = np.empty((256, COLUMNS), dtype=np.int64), 0
    best = np.empty((256, COLUMNS), dtype=np.int64)
    label = np.empty(COLUMNS, dtype=np.int64)

    for i in range(num_layers - 1, -1, -1):
        for v in range(1, num_counts):
            if num_nodes[v] > num_layers - i:
                continue
            best_size = 0
            for kind in range(num_kinds):
                behind = without[v, kind]
                if behind < 0:
                    continue
                for used in range(1, accelerators[kind] + 1):
                    size = 0
                    for q in range(len(widths)):
                        g = widths[q]
                        if g > used:
                            break
                        fresh = g == used
                        for j in range(i + 1, num_layers + 1):
                            states = state[j] - state[i]
                            activations = activation[j] - activation[i]
                            if states + activations > memory[kind] * g:
                                break
                            label[END], label[WIDTH], label[KIND], label[FRESH] = j, g, kind, fresh
                            seconds = compute[kind, q, j] - compute[kind, q, i]
                            if j == num_layers:
                                if fresh and behind == 0:
                                    fit = _microbatches_that_fit(
                                        states, activations, memory[kind] * g, 1
                                    )
                                    label[SUM] = seconds + (sync[q, j] if i == 0 else 0)
                                    label[MAX], label[FIT], label[STAGES] = seconds, fit, 1
                                    label[PARENT] = -1
                                    front = _room(front, size)
                                    size = _insert(front, size, label, count_stages)
                                continue
                            if fresh:
                                first, last = closed[j, behind]
                                seconds += inter[j]
                            else:
                                first, last = opened[j, v, kind, used - g]
                                seconds += intra[j]
                            for index in range(first, last):
                                parent = closed_ids[index, 0] if fresh else index
                                rest = labels[parent]
                                stages = rest[STAGES] + 1
                                fit = _microbatches_that_fit(
                                    states, activations, memory[kind] * g, stages
                                )
                                label[SUM] = rest[SUM] + seconds + (sync[q, j] if i == 0 else 0)
                                label[MAX] = max(rest[MAX], seconds)
                                label[FIT] = min(rest[FIT], fit)
                                label[STAGES], label[PARENT] = stages, parent
                                front = _room(front, size)
                                size = _insert(front, size, label, count_stages)
                    opened[i, v, kind, used, 0] = num_labels
                    for row in range(size):
                        labels = _room(labels, num_labels)
                        labels[num_labels] = front[row]
                        # A row of `best` names the label it stands for in its PARENT column.
                        label[:] = front[row]
                        label[PARENT] = num_labels
                        best = _room(best, best_size)
                        best_size = _insert(best, best_size, label, count_stages)
                        num_labels += 1
                    opened[i, v, kind, used, 1] = num_labels
            closed[i, v, 0] = num_closed
            for row in range(best_size):
                closed_ids = _room(closed_ids, num_closed)
                closed_ids[num_closed, 0] = best[row, PARENT]
                num_closed += 1
            closed[i, v, 1] = num_closed

    complete = np.empty((num_closed, 2), dtype=np.int64)
    num_complete = 0
    for v in range(1, num_counts):
        for row in range(closed[0, v, 0], closed[0, v, 1]):
            complete[num_complete, 0], complete[num_complete, 1] = v, closed_ids[row, 0]
            num_complete += 1
    return labels[:num_labels].copy(), complete[:num_complete].copy()


def pareto_fronts(
    tables: CostTables, without: Int64Array, num_nodes: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return every undominated partition of the whole model for every node count.

    Args:
        tables: the cost model.
        without: [count, kind] index of the count with one node of the kind less, or -1.
        num_nodes: [count] nodes in all.

    Returns:
        The labels, [label, column]; and of each complete partition its node count and its label.
    """
    return _fronts(
        tables.compute,
        tables.intra,
        tables.inter,
        tables.sync,
        tables.state,
        tables.activation,
        tables.widths,
        tables.accelerators,
        tables.memory,
        without,
        num_nodes,
    )
