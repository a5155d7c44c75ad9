"""The next best plan: the fastest one whose pipelines have other sizes than the best plan's.

Exact where that can be computed within a second or so. Elsewhere it is the fastest of a few plans
that certainly have other sizes, and the answer says so: the next best plan takes no longer than it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planaria_planner.plans.instantiate import Instantiation
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.objective import iteration_seconds
from planaria_planner.plans.other_sizes import (
    MOST_WORK,
    fastest_of_other_sizes,
    work_of_other_sizes,
)
from planaria_planner.plans.pipeline_search import (
    Selection,
    select,
    share_microbatches,
)

Size = tuple[int, ...]
"""The kinds of a pipeline's nodes, sorted: pipelines of equal size can run on the same nodes."""

Found = tuple[float, tuple[int, ...]]
"""Seconds of a step, and how many nodes each pipeline has, the most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBest:
    """The best plan of other sizes.

    Attributes:
        iteration_seconds: of a step; None where there is no such plan, or none was found.
        sizes: how many nodes its pipelines have, the most first.
        unproven: empty where no plan of other sizes is faster; else why not all were compared.
    """

    iteration_seconds: float | None
    sizes: tuple[int, ...]
    unproven: str


def next_best(answer: Instantiation) -> NextBest:
    """Return the fastest plan of other sizes than those of the plan for a new job."""
    kinds = {node.node_id: node.kind for node in answer.nodes}
    sizes = Counter(
        tuple(sorted(kinds[node_id] for node_id in pipeline.node_ids))
        for pipeline in answer.plan.pipelines
    )
    unproven = _obstacle(answer)
    if unproven:
        found = _fastest_of_some(answer, sizes)
    elif len(answer.problem.profile.hardware.node_kinds) == 1:
        found = _fastest_of_one_kind(answer, sizes)
    else:
        found = _fastest_of_kinds(answer, sizes)
    if not answer.is_exhaustive:
        unproven = "not every plan on these kinds of node was compared"
    seconds, num_nodes = found or (None, ())
    return NextBest(iteration_seconds=seconds, sizes=num_nodes, unproven=unproven)


def _obstacle(answer: Instantiation) -> str:
    """Say what keeps the answer from being exact; empty where nothing does."""
    problem, pool = answer.problem, answer.nodes
    if len(problem.profile.hardware.node_kinds) == 1:
        work = work_of_other_sizes(
            answer.templates.sizes,
            len(pool),
            min_pipelines=problem.fault_tolerance + 1,
            num_microbatches=problem.num_microbatches,
        )
    elif len({node.relative_speed for node in pool}) > 1:
        return "nodes of several kinds differ in measured speed too"
    else:
        # Each size is tried in turn, by a search over the counts of nodes times the sizes.
        counts = math.prod(count + 1 for count in Counter(node.kind for node in pool).values())
        num_sizes = len({tuple(sorted(t.node_kinds)) for t in answer.templates.templates})
        work = counts * num_sizes * num_sizes
    return "too many nodes and sizes to compare all of them" if work > MOST_WORK else ""


def _fastest_of_one_kind(answer: Instantiation, sizes: Counter[Size]) -> Found | None:
    problem = answer.problem
    return fastest_of_other_sizes(
        answer.templates.templates,
        answer.nodes,
        Counter({len(size): count for size, count in sizes.items()}),
        min_pipelines=problem.fault_tolerance + 1,
        num_microbatches=problem.num_microbatches,
        at_least_seconds=answer.plan.iteration_seconds,
    )


def _fastest_of_kinds(answer: Instantiation, sizes: Counter[Size]) -> Found | None:
    """Return the fastest where all nodes of a kind are alike.

    A plan of other sizes has one size more often than the best plan, or else consists of some of
    the best plan's sizes, and of those leaving out a single one is never slower.
    """
    problem = answer.problem
    speed = answer.nodes[0].relative_speed
    found: Found | None = None
    for forced, free in _others(answer, sizes):
        selection = select(
            answer.templates.templates if free else (),
            free,
            min_pipelines=problem.fault_tolerance + 1,
            num_microbatches=problem.num_microbatches,
            groups=[
                [t.cost.slowed(speed) for t in answer.templates.on_kinds(size)] for size in forced
            ],
            limit_seconds=_less_than(found),
        )
        if selection:
            found = selection.iteration_seconds, _num_nodes(forced, selection)
            if found[0] <= answer.plan.iteration_seconds:
                break  # no plan is faster than the best one
    return found


def _others(answer: Instantiation, sizes: Counter[Size]) -> Iterator[tuple[list[Size], list[Node]]]:
    """Yield the sizes that a plan must have and the nodes left for any further pipelines."""
    for size in sorted(sizes):
        rest = sizes - Counter([size])
        if rest:
            yield list(rest.elements()), []
    for size in sorted({tuple(sorted(t.node_kinds)) for t in answer.templates.templates}):
        forced = [size] * (sizes[size] + 1)
        left = list(answer.nodes)
        for kind in (kind for one in forced for kind in one):
            index = next((i for i, node in enumerate(left) if node.kind == kind), None)
            if index is None:
                break
            del left[index]
        else:
            yield forced, left


def _fastest_of_some(answer: Instantiation, sizes: Counter[Size]) -> Found | None:
    """Return the fastest plan without some size of the best plan, or with one pipeline fewer."""
    problem, plan = answer.problem, answer.plan
    found: Found | None = None
    if len(plan.pipelines) > problem.fault_tolerance + 1:
        by_speed = sorted(plan.pipelines, key=lambda p: p.cost.microbatch_seconds)
        slowest = {len(pipeline.node_ids): pipeline for pipeline in by_speed}
        for left_out in slowest.values():
            rest = [pipeline for pipeline in plan.pipelines if pipeline is not left_out]
            costs = [pipeline.cost for pipeline in rest]
            shares = share_microbatches(costs, problem.num_microbatches)
            seconds = iteration_seconds(costs, shares) if shares else math.inf
            if seconds < math.inf and seconds <= _less_than(found):
                found = seconds, tuple(sorted((len(p.node_ids) for p in rest), reverse=True))
    for size in sorted(sizes):
        selection = select(
            [t for t in answer.templates.templates if tuple(sorted(t.node_kinds)) != size],
            answer.nodes,
            min_pipelines=problem.fault_tolerance + 1,
            num_microbatches=problem.num_microbatches,
            limit_seconds=_less_than(found),
        )
        if selection:
            found = selection.iteration_seconds, _num_nodes((), selection)
    return found


def _less_than(found: Found | None) -> float:
    return math.nextafter(found[0], 0.0) if found else math.inf


def _num_nodes(forced: Sequence[Size], selection: Selection) -> tuple[int, ...]:
    sizes = [*map(len, forced), *(choice.template.num_nodes for choice in selection.choices)]
    return tuple(sorted(sizes, reverse=True))
