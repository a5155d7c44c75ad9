"""How far a plan can be from the optimum, where the search does not prove that it is one.

With one kind of node every plan is optimal, whatever speeds were measured. With several it is
unless kinds had to be merged, were too many nodes to mix, or differ in measured speed too. Then two
relaxations bound the optimum from below: nodes that all have the most accelerators, the most memory
and the highest speed of any kind; and accelerators that are never idle and never wait for a link.
"""

from collections.abc import Sequence
from dataclasses import replace

from planaria_planner.cost.cost_model import CostModel
from planaria_planner.cost.profile import NodeKind, widths_up_to
from planaria_planner.plans.knapsack_input import can_mix
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.pipeline_search import Selector
from planaria_planner.plans.problem import Problem
from planaria_planner.templates.templates import TemplateSet, generate_templates


def is_proven(problem: Problem, nodes: Sequence[Node], templates: TemplateSet) -> bool:
    """Say whether the best plan from these templates is the optimum, no kinds being merged."""
    return len(problem.profile.hardware.node_kinds) == 1 or (
        len({node.relative_speed for node in nodes}) == 1
        and templates.mixes
        and can_mix(templates.templates, nodes)
    )


def lower_bound_seconds(problem: Problem, nodes: Sequence[Node]) -> float:
    """Return seconds of a step that no plan on these nodes beats."""
    return max(_best_of_every_kind(problem, nodes), _never_idle(problem, nodes))


def _best_of_every_kind(problem: Problem, nodes: Sequence[Node]) -> float:
    profile = problem.profile
    kinds = [profile.hardware.node_kinds[kind] for kind in sorted({n.kind for n in nodes})]
    best = NodeKind(
        name="",
        accelerators_per_node=max(kind.accelerators_per_node for kind in kinds),
        accelerator_memory_bytes=max(kind.accelerator_memory_bytes for kind in kinds),
        relative_speed=max(kind.relative_speed for kind in kinds),
    )
    speeds = sorted((node.relative_speed for node in nodes), reverse=True)
    templates = generate_templates(
        replace(profile, hardware=replace(profile.hardware, node_kinds=(best,))),
        (len(speeds),),
        min_nodes=problem.min_nodes_per_pipeline,
        max_width=problem.max_stage_accelerators,
    )
    selection = Selector(templates.templates).select(
        [Node(node_id="", relative_speed=speed) for speed in speeds],
        min_pipelines=problem.fault_tolerance + 1,
        num_microbatches=problem.num_microbatches,
    )
    return selection.iteration_seconds if selection else 0.0


def _never_idle(problem: Problem, nodes: Sequence[Node]) -> float:
    """All microbatches' accelerator-seconds, on every accelerator at once."""
    profile = problem.profile
    kinds = profile.hardware.node_kinds
    widest = max(kind.accelerators_per_node for kind in kinds)
    widths = widths_up_to(min(widest, problem.max_stage_accelerators or widest))
    plain = NodeKind(name="", accelerators_per_node=1, accelerator_memory_bytes=1)
    work = sum(
        min(width * CostModel.layer_seconds(plain, layer, width) for width in widths)
        for layer in profile.layers
    )
    powers = sorted(  # a sum that does not depend on the order of the nodes
        (
            node.relative_speed
            * kinds[node.kind].relative_speed
            * kinds[node.kind].accelerators_per_node
            for node in nodes
        ),
        reverse=True,
    )
    return problem.num_microbatches * work / sum(powers)
