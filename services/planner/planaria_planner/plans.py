"""Plans: how many pipelines of which templates, and who runs how many microbatches.

Exact and polynomial (ALGORITHMS.md 4): a knapsack decides whether M microbatches fit within T
seconds, a search over the values that T can take finds the least. Where nodes of a kind differ in
measured speed, a pipeline runs at the speed of its slowest node, and an exchange argument makes
pipelines contiguous among the nodes sorted by speed: the knapsack takes nodes in that order.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planaria_planner import knapsack
from planaria_planner.cost import PipelineCost
from planaria_planner.knapsack import Float64Array, distribute, search
from planaria_planner.nodes import Node, in_order, nodes_per_kind
from planaria_planner.tables import Int64Array
from planaria_planner.templates import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A template taken for one pipeline, to run on nodes of at least this relative speed."""

    template: Template
    relative_speed: float

    @property
    def cost(self) -> PipelineCost:
        return self.template.cost.slowed(self.relative_speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which pipelines run, the given groups' first, each with its microbatches.

    Attributes:
        members: for each group the index of the member that runs.
        choices: the templates taken in addition, one entry per pipeline, largest first.
        num_microbatches: per pipeline, groups first.
        iteration_seconds: of the slowest pipeline.
    """

    members: tuple[int, ...]
    choices: tuple[Choice, ...]
    num_microbatches: tuple[int, ...]
    iteration_seconds: float


def select(
    templates: Sequence[Template],
    nodes: Sequence[Node],
    *,
    min_pipelines: int,
    num_microbatches: int,
    groups: Sequence[Sequence[PipelineCost]] = (),
    limit_seconds: float = math.inf,
) -> Selection | None:
    """Choose the pipelines that make a step shortest, on as few nodes as that allows.

    Args:
        templates: what to choose from; of equal ones the first is taken.
        nodes: nodes for them; some may stay idle when that is as fast.
        min_pipelines: the fewest pipelines in all, groups included.
        num_microbatches: microbatches of one step (M).
        groups: pipelines that run in any case on nodes of their own: each runs one of its costs.
        limit_seconds: the longest step of interest.

    Returns:
        None when no choice runs every microbatch in time with so many pipelines.
    """
    if num_microbatches < max(min_pipelines, len(groups), 1):
        return None
    min_options = max(min_pipelines - len(groups), 0)
    smallest = min((template.num_nodes for template in templates), default=1)
    if min_options * smallest > len(nodes):
        return None
    options, pool = _options_and_pool(templates, nodes)
    sizes, size_of = _sizes(options, pool)
    members = [cost for group in groups for cost in group]
    ends = np.cumsum([0, *(len(group) for group in groups)], dtype=np.int64)
    costs, caps = _costs_by_speed(options, pool, num_microbatches)
    member_costs, member_caps = cost_arrays(members, num_microbatches)
    seconds, chosen, taken, where = search(
        knapsack.Options(sizes=sizes, size_of=size_of, costs=costs, caps=caps),
        pool.nodes,
        knapsack.Groups(ends=ends, costs=member_costs, caps=member_caps),
        knapsack.Values(
            costs=np.concatenate((costs.reshape(-1, 2), member_costs)),
            caps=np.concatenate((caps.reshape(-1), member_caps)),
        ),
        min_options,
        num_microbatches,
        limit_seconds,
    )
    if seconds < 0:
        return None
    choices = sorted(
        (
            Choice(template=options[i], relative_speed=pool.slowest(options[i], v))
            for i, v in zip(taken, where, strict=True)
        ),
        key=lambda c: (-c.template.num_nodes, c.template.node_kinds, c.template.stages),
    )[: num_microbatches - len(groups)]
    picked = [*(members[i] for i in chosen), *(choice.cost for choice in choices)]
    shares = share_microbatches(picked, num_microbatches)
    return Selection(
        members=tuple(int(i - end) for i, end in zip(chosen, ends[:-1], strict=True)),
        choices=tuple(choices),
        num_microbatches=shares,
        iteration_seconds=slowest_seconds(picked, shares),
    )


class Selector:
    """`select` from one set of templates, remembering its answers.

    Nodes of one kind and speed are alike to it, so that the plans for the loss of one node or
    another mostly ask the same. Safe to use from several threads.
    """

    _MOST_ANSWERS = 512

    def __init__(self, templates: Sequence[Template]) -> None:
        self._templates = templates
        self._select = lru_cache(self._MOST_ANSWERS)(self._select_alike)

    def select(
        self,
        nodes: Sequence[Node],
        *,
        min_pipelines: int,
        num_microbatches: int,
        groups: Iterable[Sequence[PipelineCost]] = (),
    ) -> Selection | None:
        """Choose as `select` does."""
        alike = Counter((node.kind, node.relative_speed) for node in nodes)
        return self._select(
            tuple(sorted(alike.items())),
            min_pipelines,
            num_microbatches,
            tuple(tuple(group) for group in groups),
        )

    def _select_alike(
        self,
        alike: tuple[tuple[tuple[int, float], int], ...],
        min_pipelines: int,
        num_microbatches: int,
        groups: tuple[tuple[PipelineCost, ...], ...],
    ) -> Selection | None:
        return select(
            self._templates,
            [
                Node(node_id="", kind=kind, relative_speed=relative_speed)
                for (kind, relative_speed), count in alike
                for _ in range(count)
            ],
            min_pipelines=min_pipelines,
            num_microbatches=num_microbatches,
            groups=groups,
        )


_MOST_WORK = 2_000_000
"""Counts of nodes times sizes of templates up to which pipelines may mix kinds of node."""


def _options_and_pool(
    templates: Sequence[Template], nodes: Sequence[Node]
) -> tuple[list[Template], "_Pool"]:
    """Return what to choose from, and the nodes in the form that suits it.

    Where the counts of several kinds are too many, only templates of a single kind are considered.
    """
    num_kinds = 1 + max((max(t.node_kinds) for t in templates), default=0)
    usable = in_order(node for node in nodes if node.kind < num_kinds)
    pure = [t for t in templates if num_kinds == 1 or len(set(t.node_kinds)) == 1]
    if len(pure) < len(templates) and can_mix(templates, usable):
        return list(templates), _Pool.of_counts(usable, nodes_per_kind(usable, num_kinds))
    return pure, _Pool.in_a_row(usable)


def can_mix(templates: Sequence[Template], nodes: Sequence[Node]) -> bool:
    """Whether plans may take templates of several kinds of node: where counts are not too many."""
    counts = Counter(node.kind for node in nodes)
    return math.prod(count + 1 for count in counts.values()) * len(templates) <= _MOST_WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Nodes as the search wants them.

    Attributes:
        speeds: the relative speeds, or kinds and relative speeds, that `nodes.speed_of` counts.
        nodes: what the search takes.
    """

    speeds: tuple[tuple[int | None, float], ...]
    nodes: knapsack.Nodes

    @classmethod
    def of_counts(cls, nodes: Sequence[Node], limits: Sequence[int]) -> "_Pool":
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
    def in_a_row(cls, nodes: Sequence[Node]) -> "_Pool":
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


def _sizes(options: Sequence[Template], pool: _Pool) -> tuple[Int64Array, Int64Array]:
    """Return [size, column] the different numbers of nodes, and the size of each option."""
    uses = [pool.uses(template) for template in options]
    sizes = sorted(set(uses))
    index = {size: i for i, size in enumerate(sizes)}
    return (
        np.array(sizes, dtype=np.int64).reshape(-1, len(pool.nodes.steps)),
        np.array([index[size] for size in uses], dtype=np.int64),
    )


def _costs_by_speed(
    options: Sequence[Template], pool: _Pool, num_microbatches: int
) -> tuple[Float64Array, Int64Array]:
    costs, caps = cost_arrays([t.cost for t in options], num_microbatches)
    runs = [[pool.runs_on(t, speed) for t in options] for speed in range(len(pool.speeds))]
    return (
        np.stack([costs / speed for _, speed in pool.speeds]),
        caps * np.array(runs, dtype=np.int64).reshape(len(runs), len(options)),
    )


def share_microbatches(costs: Sequence[PipelineCost], num_microbatches: int) -> tuple[int, ...]:
    """Give each pipeline its microbatches, at least one, so that the slowest ends soonest.

    Returns nothing when they do not fit, or are fewer than the pipelines.
    """
    return tuple(
        int(share) for share in distribute(*cost_arrays(costs, num_microbatches), num_microbatches)
    )


def slowest_seconds(costs: Sequence[PipelineCost], shares: Sequence[int]) -> float:
    """Return max over the pipelines of a + b*m."""
    return max(cost.iteration_seconds(m) for cost, m in zip(costs, shares, strict=True))


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
