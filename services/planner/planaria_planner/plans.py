"""Plans: how many pipelines of which templates, and who runs how many microbatches.

Exact and polynomial (ALGORITHMS.md 4): a knapsack decides whether M microbatches fit within T
seconds, a search over the values that T can take finds the least.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planaria_planner.cost import PipelineCost
from planaria_planner.knapsack import Float64Array, distribute, search
from planaria_planner.tables import Int64Array
from planaria_planner.templates import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which pipelines run, the given groups' first, each with its microbatches.

    Attributes:
        members: for each group the index of the member that runs.
        templates: the templates taken in addition, largest first, one entry per pipeline.
        num_microbatches: per pipeline, groups first.
        iteration_seconds: of the slowest pipeline.
    """

    members: tuple[int, ...]
    templates: tuple[Template, ...]
    num_microbatches: tuple[int, ...]
    iteration_seconds: float


def select(
    templates: Sequence[Template],
    num_nodes: int,
    *,
    min_pipelines: int,
    num_microbatches: int,
    groups: Sequence[Sequence[PipelineCost]] = (),
) -> Selection | None:
    """Choose the pipelines that make a step shortest, on as few nodes as that allows.

    Args:
        templates: what to choose from.
        num_nodes: nodes for them; some may stay idle when that is as fast.
        min_pipelines: the fewest pipelines in all, groups included.
        num_microbatches: microbatches of one step (M).
        groups: pipelines that run in any case on nodes of their own: each runs one of its costs.

    Returns:
        None when no choice runs every microbatch with so many pipelines.
    """
    if num_microbatches < max(min_pipelines, len(groups)):
        return None
    options = sorted(
        (t for t in templates if t.num_nodes <= num_nodes), key=lambda t: (t.num_nodes, t.stages)
    )
    members = [cost for group in groups for cost in group]
    ends = np.cumsum([0, *(len(group) for group in groups)], dtype=np.int64)
    seconds, chosen, taken = search(
        np.array([t.num_nodes for t in options], dtype=np.int64),
        *cost_arrays([t.cost for t in options], num_microbatches),
        ends,
        *cost_arrays(members, num_microbatches),
        num_nodes,
        max(min_pipelines - len(groups), 0),
        num_microbatches,
    )
    if seconds < 0:
        return None
    picked = sorted((options[i] for i in taken), key=lambda t: (-t.num_nodes, t.stages))
    costs = [*(members[i] for i in chosen), *(t.cost for t in picked)]
    shares = share_microbatches(costs, num_microbatches)
    return Selection(
        members=tuple(int(i - end) for i, end in zip(chosen, ends[:-1], strict=True)),
        templates=tuple(picked),
        num_microbatches=shares,
        iteration_seconds=slowest_seconds(costs, shares),
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
