"""Why a plan is what it is: the stage that binds it, and the price of fault tolerance."""

from dataclasses import dataclass

from planaria_common.words import counted
from planaria_planner.cost.cost_model import CostModel
from planaria_planner.plans.instantiate import Instantiation
from planaria_planner.plans.next_best import NextBest
from planaria_planner.plans.pipeline_search import select
from planaria_planner.plans.problem import Pipeline, sizes_in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What bounds a plan.

    Attributes:
        pipeline: index of the slowest pipeline.
        stage: index of its slowest stage.
        stage_seconds: what one microbatch takes there.
        fault_tolerance_seconds: how much longer a step takes than without fault tolerance.
    """

    pipeline: int
    stage: int
    stage_seconds: float
    fault_tolerance_seconds: float


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
    return Explanation(
        pipeline=slowest,
        stage=stage,
        stage_seconds=seconds[stage],
        fault_tolerance_seconds=plan.iteration_seconds - best,
    )


def _stage_seconds(model: CostModel, pipeline: Pipeline, kinds: dict[str, int]) -> list[float]:
    stages = pipeline.stages
    return [
        model.stage_seconds(kinds[pipeline.node_ids[stage.node]], stage, following)
        for stage, following in zip(stages, [*stages[1:], None], strict=True)
    ]


def in_words(answer: Instantiation, explanation: Explanation, other: NextBest | None = None) -> str:
    """Explain a plan in a few sentences, and name the next best one if it was searched for."""
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
        f"tolerating {counted(problem.fault_tolerance, 'lost node')} costs"
        f" {explanation.fault_tolerance_seconds:.6g} s a step",
    ]
    if other:
        words.append(_next_best_in_words(other))
    if answer.lower_bound_seconds < plan.iteration_seconds:
        gap = plan.iteration_seconds / answer.lower_bound_seconds - 1
        words.append(
            f"not proven the fastest: no plan takes less than {answer.lower_bound_seconds:.6g} s,"
            f" {100 * gap:.2g} % less"
        )
    return "; ".join(words) + "."


def _next_best_in_words(other: NextBest) -> str:
    if other.iteration_seconds is None:
        found = "no plan has pipelines of other sizes"
        return f"{found} as far as was seen: {other.unproven}" if other.unproven else found
    plan = f"pipelines of {sizes_in_words(other.sizes)}, {other.iteration_seconds:.6g} s a step"
    if other.unproven:
        return f"next best: at least as good as {plan} ({other.unproven})"
    return f"next best: {plan}"
