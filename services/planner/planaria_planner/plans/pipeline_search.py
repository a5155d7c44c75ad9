"""Plans: how many pipelines of which templates, and who runs how many microbatches.

Exact and polynomial (planning.md 4): a knapsack decides whether M microbatches fit within T
seconds, a search over the values that T can take finds the least. Where nodes of a kind differ in
measured speed, a pipeline runs at the speed of its slowest node, and an exchange argument makes
pipelines contiguous among the nodes sorted by speed: the knapsack takes nodes in that order.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planaria_planner.cost.cost_model import PipelineCost
from planaria_planner.plans.knapsack import distribute, search
from planaria_planner.plans.knapsack_input import (
    cost_arrays,
    knapsack_groups,
    knapsack_options,
    knapsack_values,
    options_and_pool,
)
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.objective import iteration_seconds
from planaria_planner.templates.templates import Template


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
    options, pool = options_and_pool(templates, nodes)
    offered = knapsack_options(options, pool, num_microbatches)
    given = knapsack_groups(groups, num_microbatches)
    seconds, chosen, taken, where = search(
        offered,
        pool.nodes,
        given,
        knapsack_values(offered, given),
        min_options,
        num_microbatches,
        limit_seconds,
    )
    if seconds < 0:
        return None
    choices = [
        Choice(template=options[i], relative_speed=pool.slowest(options[i], v))
        for i, v in zip(taken, where, strict=True)
    ]
    choices.sort(key=lambda c: (-c.template.num_nodes, c.template.node_kinds, c.template.stages))
    del choices[num_microbatches - len(groups) :]  # each runs at least one microbatch
    members = tuple(int(i - end) for i, end in zip(chosen, given.ends[:-1], strict=True))
    picked = [group[i] for group, i in zip(groups, members, strict=True)]
    picked += [choice.cost for choice in choices]
    shares = share_microbatches(picked, num_microbatches)
    return Selection(
        members=members,
        choices=tuple(choices),
        num_microbatches=shares,
        iteration_seconds=iteration_seconds(picked, shares),
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


def share_microbatches(costs: Sequence[PipelineCost], num_microbatches: int) -> tuple[int, ...]:
    """Give each pipeline its microbatches, at least one, so that the slowest ends soonest.

    Returns nothing when they do not fit, or are fewer than the pipelines.
    """
    return tuple(
        int(share) for share in distribute(*cost_arrays(costs, num_microbatches), num_microbatches)
    )
