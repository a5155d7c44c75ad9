"""The next plan for every single node that may be lost, computed while training runs.

When a node dies, its plan is there already: no planning is on the critical path (planning.md 5).
"""

from collections.abc import Iterator, Sequence

from planaria_common.errors import PlanariaError
from planaria_planner.changes.candidates import RunningPipeline
from planaria_planner.changes.checks import check_change
from planaria_planner.changes.inventory import Holdings, Inventory
from planaria_planner.changes.reconfigure import (
    Reconfiguration,
    best_ground,
    groundworks,
    next_plan,
)
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Problem

Outcome = Reconfiguration | PlanariaError
"""The plan that follows a loss, or why there is none."""


def contingency_plans(
    problem: Problem,
    nodes: Sequence[Node],
    running: Sequence[RunningPipeline],
    holdings: Holdings,
    *,
    horizon_seconds: float,
) -> Iterator[tuple[str, Outcome]]:
    """Yield, for each node of the running plan by name, what follows its loss.

    Arguments and errors are those of `reconfigure`; what they have in common is computed once.
    """
    check_change(problem, running, holdings, horizon_seconds)
    inventory = Inventory.of(problem.profile, holdings)
    grounds = groundworks(problem, nodes, running, inventory)
    node_ids = frozenset(node.node_id for node in nodes)
    for lost in sorted(node_id for pipeline in running for node_id in pipeline.node_ids):
        try:
            yield (
                lost,
                next_plan(
                    *best_ground(grounds, node_ids - {lost}),
                    inventory.without(lost),
                    horizon_seconds=horizon_seconds,
                ),
            )
        except PlanariaError as error:
            yield lost, error
