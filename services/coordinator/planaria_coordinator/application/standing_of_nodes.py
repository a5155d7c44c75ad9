"""What a job may not know of its nodes.

What becomes of a node is stored first, and then told to the jobs that hold it, each of which stores
what it makes of that. A coordinator that dies between the two leaves the second undone; and nobody
tells a job of a node that it is about to be given.
"""

from collections.abc import Callable, Iterator
from datetime import datetime

from planaria_coordinator.domain.node import Node, NodeState
from planaria_coordinator.domain.run import JobRun
from planaria_coordinator.domain.signals import DrainEnded, DrainWanted, NodeLost, Signal


def signals_of_nodes(
    run: JobRun, find: Callable[[str], Node | None], now: datetime
) -> Iterator[Signal]:
    """Yields what a job has to be told; those of it that it knows do nothing."""
    for node_id in sorted(run.held_nodes):
        node = find(node_id)
        if node is None or node.state is NodeState.LOST:
            reason = "it was declared lost before this job could hear of it"
            yield NodeLost(node_id=node_id, fault_time=now, reason=reason)
        elif node.state in (NodeState.DRAINING, NodeState.DRAINED):
            yield DrainWanted(node_id=node_id)
        elif node_id in run.draining:
            yield DrainEnded(node_id=node_id)
