"""What the knapsack searches: nodes, and the templates that may run on them, as arrays."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planaria_planner.cost.cost_model import PipelineCost
from planaria_planner.plans import knapsack
from planaria_planner.plans.knapsack import Float64Array
from planaria_planner.plans.nodes import Node, in_order, nodes_per_kind
from planaria_planner.templates.cost_tables import Int64Array
from planaria_planner.templates.templates import Template

_MOST_WORK = 2_000_000
"""Counts of nodes times sizes of templates up to which pipelines may mix kinds of node."""


def options_and_pool(
    templates: Sequence[Template], nodes: Sequence[Node]
) -> tuple[list[Template], "Pool"]:
    """Return what to choose from, and the nodes in the form that suits it.

    Where the counts of several kinds are too many, only templates of a single kind are considered.
    """
    num_kinds = 1 + max((max(t.node_kinds) for t in templates), default=0)
    usable = in_order(node for node in nodes if node.kind < num_kinds)
    pure = [t for t in templates if num_kinds == 1 or len(set(t.node_kinds)) == 1]
    if len(pure) < len(templates) and can_mix(templates, usable):
        return list(templates), Pool.of_counts(usable, nodes_per_kind(usable, num_kinds))
    return pure, Pool.in_a_row(usable)


def can_mix(templates: Sequence[Template], nodes: Sequence[Node]) -> bool:
    """Whether plans may take templates of several kinds of node: where counts are not too many."""
    counts = Counter(node.kind for node in nodes)
    return math.prod(count + 1 for count in counts.values()) * len(templates) <= _MOST_WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes as the search wants them.

    Attributes:
        speeds: the relative speeds, or kinds and relative speeds, that `nodes.speed_of` counts.
        nodes: what the search takes.
    """

    speeds: tuple[tuple[int | None, float], ...]
    nodes: knapsack.Nodes

    @classmethod
    def of_counts(cls, nodes: Sequence[Node], limits: Sequence[int]) -> "Pool":
        """Count each kind apart: pipelines may mix them."""
        speeds = sorted({node.relative_speed for node in nodes}, reverse=True) or [1.0]
        index = {speed: i for i, speed in enumerate(speeds)}
        speed_of = np.zeros((len(limits), max(limits) + 1), dtype=np.int64)
        for kind, limit in enumerate(limits):
            of_kind = [index[node.relative_speed] for node in nodes if node.kind == kind]
            speed_of[kind, 1 : limit + 1] = of_kind
        steps = [1]
        for limit in reversed(limits[1:]):
            steps.insert(0, steps[0] * (limit + 1))
        counts = list(itertools.product(*(range(limit + 1) for limit in limits)))
        return cls(
            speeds=tuple((None, speed) for speed in speeds),
            nodes=knapsack.Nodes(
                steps=np.array(steps, dtype=np.int64),
                counts=np.array(counts, dtype=np.int64),
                speed_of=speed_of,
                within=np.zeros(len(counts), dtype=np.int64),
            ),
        )

    @classmethod
    def in_a_row(cls, nodes: Sequence[Node]) -> "Pool":
        """Count all nodes together, kind after kind: pipelines stay within one."""
        classes = [(node.kind, node.relative_speed) for node in nodes]
        speeds = tuple(dict.fromkeys(classes)) or ((0, 1.0),)
        index = {one: i for i, one in enumerate(speeds)}
        first = {kind: i for i, (kind, _) in reversed(list(enumerate(classes)))}
        return cls(
            speeds=speeds,
            nodes=knapsack.Nodes(
                steps=np.array([1], dtype=np.int64),
                counts=np.arange(len(nodes) + 1, dtype=np.int64).reshape(-1, 1),
                speed_of=np.array([[0, *(index[one] for one in classes)]], dtype=np.int64),
                within=np.array(
                    [0, *(i + 1 - first[kind] for i, (kind, _) in enumerate(classes))],
                    dtype=np.int64,
                ),
            ),
        )

    def uses(self, template: Template) -> tuple[int, ...]:
        """Return the nodes that a template takes, by column of `counts`."""
        if len(self.nodes.steps) == 1:
            return (template.num_nodes,)
        return tuple(template.node_kinds.count(kind) for kind in range(len(self.nodes.steps)))

    def runs_on(self, template: Template, speed: int) -> bool:
        """Whether a template may run on nodes of this speed."""
        return self.speeds[speed][0] in (None, template.node_kinds[0])

    def slowest(self, template: Template, v: int) -> float:
        """Return the speed of the slowest node when a template takes the slowest nodes of v."""
        speed_of, counts = self.nodes.speed_of, self.nodes.counts
        columns = [column for column, used in enumerate(self.uses(template)) if used]
        return self.speeds[max(int(speed_of[column, counts[v, column]]) for column in columns)][1]


def knapsack_options(
    options: Sequence[Template], pool: Pool, num_microbatches: int
) -> knapsack.Options:
    """Return what to choose from, as the search wants it."""
    sizes, size_of = _sizes(options, pool)
    costs, caps = _costs_by_speed(options, pool, num_microbatches)
    return knapsack.Options(sizes=sizes, size_of=size_of, costs=costs, caps=caps)


def knapsack_groups(
    groups: Sequence[Sequence[PipelineCost]], num_microbatches: int
) -> knapsack.Groups:
    """Return the pipelines that are there already, as the search wants them."""
    ends = np.cumsum([0, *(len(group) for group in groups)], dtype=np.int64)
    members = [cost for group in groups for cost in group]
    costs, caps = cost_arrays(members, num_microbatches)
    return knapsack.Groups(ends=ends, costs=costs, caps=caps)


def knapsack_values(options: knapsack.Options, groups: knapsack.Groups) -> knapsack.Values:
    """Return every cost that decides how long a step can take."""
    return knapsack.Values(
        costs=np.concatenate((options.costs.reshape(-1, 2), groups.costs)),
        caps=np.concatenate((options.caps.reshape(-1), groups.caps)),
    )


def _sizes(options: Sequence[Template], pool: Pool) -> tuple[Int64Array, Int64Array]:
    """Return [size, column] the different numbers of nodes, and the size of each option."""
    uses = [pool.uses(template) for template in options]
    sizes = sorted(set(uses))
    index = {size: i for i, size in enumerate(sizes)}
    return (
        np.array(sizes, dtype=np.int64).reshape(-1, len(pool.nodes.steps)),
        np.array([index[size] for size in uses], dtype=np.int64),
    )


def _costs_by_speed(
    options: Sequence[Template], pool: Pool, num_microbatches: int
) -> tuple[Float64Array, Int64Array]:
    costs, caps = cost_arrays([t.cost for t in options], num_microbatches)
    runs = [[pool.runs_on(t, speed) for t in options] for speed in range(len(pool.speeds))]
    return (
        np.stack([costs / speed for _, speed in pool.speeds]),
        caps * np.array(runs, dtype=np.int64).reshape(len(runs), len(options)),
    )


def cost_arrays(
    costs: Sequence[PipelineCost], num_microbatches: int
) -> tuple[Float64Array, Int64Array]:
    """Return [pipeline, 2] a and b, and [pipeline] the microbatches that fit, at most M."""
    return (
        np.array(
            [[cost.fixed_seconds, cost.microbatch_seconds] for cost in costs], dtype=np.float64
        ).reshape(-1, 2),
        np.array(
            [
                num_microbatches
                if cost.max_microbatches is None
                else min(cost.max_microbatches, num_microbatches)
                for cost in costs
            ],
            dtype=np.int64,
        ),
    )
