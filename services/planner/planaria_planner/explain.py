"""Why a plan is what it is: the stage that binds it, the price of f, and the next best plan."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planaria_planner.cost import CostModel
from planaria_planner.instantiate import Instantiation
from planaria_planner.nodes import Node
from planaria_planner.other_sizes import fastest_of_other_sizes
from planaria_planner.plans import Selection, select
from planaria_planner.problem import Pipeline, sizes_in_words

Size = tuple[int, ...]
"""The kinds of a pipeline's nodes, sorted: pipelines of equal size can run on the same nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What bounds a plan.

    Attributes:
        pipeline: index of the slowest pipeline.
        stage: index of its slowest stage.
        stage_seconds: what one microbatch takes there.
        fault_tolerance_seconds: how much longer a step takes than without fault tolerance.
        next_best_seconds: a step of the fastest plan whose pipelines have other sizes; None where
            there is none, or where nodes of several kinds also differ in measured speed.
        next_best_sizes: how many nodes its pipelines have.
    """

    pipeline: int
    stage: int
    stage_seconds: float
    fault_tolerance_seconds: float
    next_best_seconds: float | None
    next_best_sizes: tuple[int, ...]


def explain(answer: Instantiation) -> Explanation:
    """Explain the plan of a new job."""
    problem, plan = answer.problem, answer.plan
    slowest = max(
        range(len(plan.pipelines)), key=lambda i: (plan.pipelines[i].iteration_seconds, -i)
    )
    kinds = {node.node_id: node.kind for node in answer.nodes}
    seconds = _stage_seconds(CostModel(problem.profile), plan.pipelines[slowest], kinds)
    stage = max(range(len(seconds)), key=lambda i: (seconds[i], -i))
    without = select(
        answer.templates.templates,
        answer.nodes,
        min_pipelines=1,
        num_microbatches=problem.num_microbatches,
    )
    best = without.iteration_seconds if without else plan.iteration_seconds
    sizes = Counter(tuple(sorted(kinds[node_id] for node_id in p.node_ids)) for p in plan.pipelines)
    other = next_best(answer, sizes)
    return Explanation(
        pipeline=slowest,
        stage=stage,
        stage_seconds=seconds[stage],
        fault_tolerance_seconds=plan.iteration_seconds - best,
        next_best_seconds=other[0] if other else None,
        next_best_sizes=other[1] if other else (),
    )


def _stage_seconds(model: CostModel, pipeline: Pipeline, kinds: dict[str, int]) -> list[float]:
    stages = pipeline.stages
    return [
        model.stage_seconds(kinds[pipeline.node_ids[stage.node]], stage, following)
        for stage, following in zip(stages, [*stages[1:], None], strict=True)
    ]


def next_best(answer: Instantiation, sizes: Counter[Size]) -> tuple[float, tuple[int, ...]] | None:
    """Return the fastest plan of other sizes: its seconds, and the nodes of its pipelines.

    Exact: a plan of other sizes has one size more often than the best plan, or else consists of
    some of the best plan's sizes, and of those leaving out a single one is never slower.
    """
    problem, pool = answer.problem, answer.nodes
    if len({node.relative_speed for node in pool}) > 1:
        if len({node.kind for node in pool}) > 1:
            return None
        return fastest_of_other_sizes(
            answer.templates.templates,
            pool,
            Counter({len(size): count for size, count in sizes.items()}),
            min_pipelines=problem.fault_tolerance + 1,
            num_microbatches=problem.num_microbatches,
        )
    found: tuple[float, tuple[int, ...]] | None = None
    limit = math.inf
    for forced, free in _others(answer, sizes):
        speed = pool[0].relative_speed
        selection = select(
            answer.templates.templates if free else (),
            free,
            min_pipelines=problem.fault_tolerance + 1,
            num_microbatches=problem.num_microbatches,
            groups=[
                [t.cost.slowed(speed) for t in answer.templates.on_kinds(size)] for size in forced
            ],
            limit_seconds=limit,
        )
        if selection:
            found = selection.iteration_seconds, _num_nodes(forced, selection)
            limit = math.nextafter(selection.iteration_seconds, 0.0)
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


def _num_nodes(forced: Sequence[Size], selection: Selection) -> tuple[int, ...]:
    sizes = [*map(len, forced), *(choice.template.num_nodes for choice in selection.choices)]
    return tuple(sorted(sizes, reverse=True))


def in_words(answer: Instantiation, explanation: Explanation) -> str:
    """Say it in a few sentences."""
    problem, plan = answer.problem, answer.plan
    slowest = plan.pipelines[explanation.pipeline]
    stage = slowest.stages[explanation.stage]
    sizes = sizes_in_words(len(pipeline.node_ids) for pipeline in plan.pipelines)
    words = [
        f"pipelines of {sizes}, {len(plan.idle_node_ids)} idle,"
        f" {plan.iteration_seconds:.6g} s a step",
        f"pipeline {explanation.pipeline} is the slowest, bound by stage {explanation.stage}"
        f" (layers {stage.first_layer} to {stage.end_layer - 1} on"
        f" {slowest.node_ids[stage.node]}: {explanation.stage_seconds:.6g} s a microbatch)",
        f"tolerating {problem.fault_tolerance} lost nodes costs"
        f" {explanation.fault_tolerance_seconds:.6g} s a step",
    ]
    if explanation.next_best_seconds is not None:
        others = sizes_in_words(explanation.next_best_sizes)
        words.append(
            f"next best: pipelines of {others}, {explanation.next_best_seconds:.6g} s a step"
        )
    if answer.lower_bound_seconds < plan.iteration_seconds:
        gap = plan.iteration_seconds / answer.lower_bound_seconds - 1
        words.append(
            f"not proven the fastest: no plan takes less than {answer.lower_bound_seconds:.6g} s,"
            f" {100 * gap:.2g} % less"
        )
    return "; ".join(words) + "."
