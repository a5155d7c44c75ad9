"""What a job may not know of its nodes.

What becomes of a node is stored first, and then told to the jobs that hold it, each of which stores
what it makes of that. A coordinator that dies between the two leaves the second undone; and nobody
tells a job of a node that it is about to be given.
"""

from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.signals import DrainEnded, DrainWanted, NodeLost


def send_node_updates(state: SharedState, actor: JobActor) -> None:
    """Tell a job what has become of its nodes; what it knows of that already does nothing."""
    run = actor.run
    for node_id in sorted(run.held_nodes):
        entry = state.nodes.get(node_id)
        if entry is None or entry.node.state is NodeState.LOST:
            reason = "it was declared lost before this job could hear of it"
            actor.post(NodeLost(node_id=node_id, fault_time=state.clock.now(), reason=reason))
        elif entry.node.state in (NodeState.DRAINING, NodeState.DRAINED):
            actor.post(DrainWanted(node_id=node_id))
        elif node_id in run.draining:
            actor.post(DrainEnded(node_id=node_id))
