"""The plan of a new job: the fastest that meets its fault tolerance, or why there is none."""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.words import counted
from planaria_planner.plans.knapsack_input import can_mix
from planaria_planner.plans.lower_bounds import is_proven, lower_bound_seconds
from planaria_planner.plans.node_kinds import MAX_KINDS, MOST_PURE_KINDS, are_few, merge_kinds
from planaria_planner.plans.nodes import Node, check_nodes, in_order, nodes_per_kind
from planaria_planner.plans.pipeline_search import Choice, Selection, Selector
from planaria_planner.plans.problem import Plan, Problem, make_plan
from planaria_planner.templates.templates import (
    TemplateSet,
    generate_templates,
    not_enough_nodes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A job and its nodes as the search sees them: in order, some kinds of node merged."""

    problem: Problem
    nodes: tuple[Node, ...]

    @property
    def templates(self) -> TemplateSet:
        """The templates that the job may use on these nodes; raises as `generate_templates`."""
        limits = nodes_per_kind(self.nodes, len(self.problem.profile.hardware.node_kinds))
        return _templates_within(self.problem, limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instantiation:
    """A plan for a new job.

    Attributes:
        problem: the job, its kinds of node merged where that is possible.
        nodes: the nodes it may use, by these kinds.
        plan: the fastest plan that meets the fault tolerance.
        templates: what it was chosen from.
        lower_bound_seconds: no plan has a shorter step; that of the plan where it is the optimum.
        is_exhaustive: whether every possible plan was considered, and not only those of some kind.
    """

    problem: Problem
    nodes: tuple[Node, ...]
    plan: Plan
    templates: TemplateSet
    lower_bound_seconds: float
    is_exhaustive: bool


def instantiate(problem: Problem, nodes: Sequence[Node]) -> Instantiation:
    """Compute the plan of least iteration time for a new job.

    Raises:
        PlanariaError: INVALID_PROFILE, INVALID_ARGUMENT or MODEL_DOES_NOT_FIT as for
            `generate_templates`; NOT_ENOUGH_NODES when the model, or the microbatches, need more;
            FAULT_TOLERANCE_IMPOSSIBLE when the pipelines that f asks for need more.
    """
    asked, seen = problem, views(problem, nodes)
    problem, pool, templates, selector = _best_view(problem, nodes, seen)
    budget = fastest_first(pool)
    selection = selector.select(
        budget,
        min_pipelines=problem.fault_tolerance + 1,
        num_microbatches=problem.num_microbatches,
    )
    if selection is None:
        raise _refusal(problem, templates, selector, budget)
    plan = _placed(problem, selection, pool)
    bound = plan.iteration_seconds
    is_exhaustive = (
        len(seen) == 1 and are_few(asked.profile, nodes) and is_proven(problem, pool, templates)
    )
    if not is_exhaustive:
        bound = min(bound, lower_bound_seconds(asked, nodes))
    return Instantiation(
        problem=problem,
        nodes=budget,
        plan=plan,
        templates=templates,
        lower_bound_seconds=bound,
        is_exhaustive=is_exhaustive,
    )


def _best_view(
    problem: Problem, nodes: Sequence[Node], seen: Sequence[View]
) -> tuple[Problem, tuple[Node, ...], TemplateSet, Selector]:
    found = []
    for view in seen:
        try:
            templates = view.templates
        except PlanariaError as error:
            refusal = error
        else:
            found.append((view.problem, view.nodes, templates, Selector(templates.templates)))
    if not found:
        raise refusal_on(problem, nodes, refusal)
    return found[0] if len(found) == 1 else max(found, key=lambda f: view_score(f[0], f[3], f[1]))


def refusal_on(problem: Problem, nodes: Sequence[Node], refusal: PlanariaError) -> PlanariaError:
    """Return why there is no template: where a kind without nodes holds the model, these lack."""
    if refusal.reason is not ErrorReason.MODEL_DOES_NOT_FIT:
        return refusal
    there = {node.kind for node in nodes}
    missing = []
    for kind in range(len(problem.profile.hardware.node_kinds)):
        limits = [0] * len(problem.profile.hardware.node_kinds)
        limits[kind] = problem.profile.num_layers if kind not in there else 0
        try:
            missing.append(_templates_within(problem, tuple(limits)).min_nodes)
        except PlanariaError:
            continue  # nor does this kind
    if not missing:
        return refusal
    return not_enough_nodes(len(nodes), len(nodes) + min(missing))


def views(problem: Problem, nodes: Sequence[Node]) -> tuple[View, ...]:
    """Return the ways to look at a job that are worth it.

    A single one that merges no more than it must, where pipelines may mix its kinds. Where these
    would be too many, also one of more kinds, on which each pipeline is of one kind; and one of a
    single kind, on which pipelines may have any nodes.
    """
    check_nodes(nodes)
    least = _merged(problem, nodes, MAX_KINDS)
    if len(least.problem.profile.hardware.node_kinds) == 1 or _mixes(least):
        return (least,)
    many = _merged(problem, nodes, MOST_PURE_KINDS)
    others = (many,) if len(many.problem.profile.hardware.node_kinds) > MAX_KINDS else ()
    return least, *others, _merged(problem, nodes, 1)


def _merged(problem: Problem, nodes: Sequence[Node], most_kinds: int) -> View:
    profile, merged = merge_kinds(problem.profile, in_order(nodes), most_kinds)
    return View(problem=replace(problem, profile=profile), nodes=in_order(merged))


def _mixes(view: View) -> bool:
    try:
        templates = view.templates
    except PlanariaError:
        return False
    return templates.mixes and can_mix(templates.templates, view.nodes)


def view_score(problem: Problem, selector: Selector, nodes: Sequence[Node]) -> tuple[int, float]:
    """Return what views are compared by: pipelines, at most f + 1, and negative step seconds."""
    budget = fastest_first(nodes)
    count = most_pipelines(problem, selector, budget)
    best = selector.select(budget, min_pipelines=count, num_microbatches=problem.num_microbatches)
    return (count, -best.iteration_seconds) if count and best else (0, 0.0)


def fastest_first(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes by their measured speed."""
    return tuple(sorted(nodes, key=lambda node: (-node.relative_speed, node.kind, node.node_id)))


def most_pipelines(problem: Problem, selector: Selector, nodes: Sequence[Node]) -> int:
    """Return the most pipelines, at most f + 1, that run every microbatch; 0 for none."""
    for count in range(problem.fault_tolerance + 1, 0, -1):
        if selector.select(nodes, min_pipelines=count, num_microbatches=problem.num_microbatches):
            return count
    return 0


def nodes_needed(
    problem: Problem,
    templates: TemplateSet,
    selector: Selector,
    nodes: Sequence[Node],
    min_pipelines: int,
) -> int:
    """Return how many nodes there must be for so many pipelines to run every microbatch.

    There are such: with a node set of n0 for each microbatch at the latest.

    The nodes that are missing are of the kinds of the smallest template, in its proportion.
    """
    kinds = itertools.cycle(templates.templates[0].node_kinds)
    extra: list[Node] = []

    def suffice(num_extra: int) -> bool:
        while len(extra) < num_extra:
            extra.append(Node(node_id=f"extra-{len(extra)}", kind=next(kinds)))
        return (
            selector.select(
                [*nodes, *extra[:num_extra]],
                min_pipelines=min_pipelines,
                num_microbatches=problem.num_microbatches,
            )
            is not None
        )

    enough = 1
    while not suffice(enough):
        enough *= 2
    few = enough // 2
    return len(nodes) + few + bisect.bisect_left(range(few, enough), True, key=suffice)


def _refusal(
    problem: Problem, templates: TemplateSet, selector: Selector, nodes: Sequence[Node]
) -> PlanariaError:
    """Say what is missing: nodes for the microbatches, or nodes for the fault tolerance."""
    possible = most_pipelines(problem, selector, nodes) - 1
    if possible < 0:
        return not_enough_nodes(len(nodes), nodes_needed(problem, templates, selector, nodes, 1))
    wanted = problem.fault_tolerance
    need = nodes_needed(problem, templates, selector, nodes, wanted + 1)
    return PlanariaError(
        ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE,
        f"resilience.fault_tolerance: {wanted} needs {counted(wanted + 1, 'pipeline')} on"
        f" {counted(need, 'node')}, have {len(nodes)}:"
        f" add nodes or lower it to {possible}",
        {
            "fault_tolerance": str(wanted),
            "possible": str(possible),
            "have": str(len(nodes)),
            "need": str(need),
        },
    )


def _placed(problem: Problem, selection: Selection, pool: Sequence[Node]) -> Plan:
    """Give the nodes out in order, to the pipelines that need fast ones first."""
    left = list(pool)
    placed: list[tuple[Choice, tuple[Node, ...]]] = []
    for choice in sorted(selection.choices, key=lambda c: -c.relative_speed):
        nodes = []
        for kind in choice.template.node_kinds:
            nodes.append(next(node for node in left if node.kind == kind))
            left.remove(nodes[-1])
        placed.append((choice, tuple(nodes)))
    return make_plan(
        [
            (
                tuple(node.node_id for node in nodes),
                choice.template.stages,
                choice.template.cost.slowed(min(node.relative_speed for node in nodes)),
            )
            for choice, nodes in placed
        ],
        problem.num_microbatches,
        (node.node_id for node in left),
    )


def _templates_within(problem: Problem, nodes_per_kind: tuple[int, ...]) -> TemplateSet:
    return generate_templates(
        problem.profile,
        nodes_per_kind,
        min_nodes=problem.min_nodes_per_pipeline,
        max_width=problem.max_stage_accelerators,
    )
