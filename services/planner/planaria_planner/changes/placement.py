"""Which node takes which place, so that the fewest bytes move (planning.md 5).

A linear sum assignment of nodes to places: the cost is what the node lacks of the place's layers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from planaria_planner.changes.inventory import Inventory
from planaria_planner.plans.nodes import Node


class Place(NamedTuple):
    """A node's place in a pipeline to come; a named tuple, since plans made ahead make thousands.

    Attributes:
        layers: the layers it is to hold.
        kind: the kind of node that it needs.
        min_relative_speed: the least speed the plan counts on.
        heir_of: the node that has this very place now, empty where there is none. Of two equally
            cheap assignments the one that moves fewer nodes is chosen.
    """

    layers: range
    kind: int
    min_relative_speed: float
    heir_of: str = ""


def assign(
    places: Sequence[Place], nodes: Sequence[Node], inventory: Inventory
) -> tuple[Node, ...]:
    """Return for each place its node, with the fewest bytes to copy in all.

    Args:
        places: what is to be filled; the nodes suffice for all of them.
        nodes: who may fill it, in a fixed order.
        inventory: who holds what already.
    """
    if not places:
        return ()
    first = np.array([place.layers.start for place in places])
    end = np.array([place.layers.stop for place in places])
    held = inventory.held_by([node.node_id for node in nodes])
    lacking = (inventory.weights[end] - inventory.weights[first])[:, None]
    lacking = lacking - (held[:, end] - held[:, first]).T
    # The tie-break stays below the smallest difference in bytes, which is 1.
    costs = lacking * (len(places) + 1) + 1
    column = {node.node_id: i for i, node in enumerate(nodes)}
    for row, place in enumerate(places):
        if place.heir_of in column:
            costs[row, column[place.heir_of]] -= 1
    kinds = np.array([node.kind for node in nodes])
    speeds = np.array([node.relative_speed for node in nodes])
    unfit = kinds[None, :] != np.array([place.kind for place in places])[:, None]
    unfit |= speeds[None, :] < np.array([place.min_relative_speed for place in places])[:, None]
    costs[unfit] = np.inf
    _, columns = linear_sum_assignment(costs)
    return tuple(nodes[i] for i in columns)
