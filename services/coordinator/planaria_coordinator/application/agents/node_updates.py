"""Changes of nodes that a job may not have heard of.

A change of a node is stored first and then sent to the jobs that hold the node, which store what
they decide. A coordinator that dies in between leaves the second undone; and a job that is about
to be given a node has not heard of its changes.
"""

from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.signals import DrainEnded, DrainWanted, NodeLost


def send_node_updates(state: SharedState, actor: JobActor) -> None:
    """Send a job the changes of its nodes; a change that it knows has no effect."""
    run = actor.run
    for node_id in sorted(run.held_nodes):
        entry = state.nodes.get(node_id)
        if entry is None or entry.node.state is NodeState.LOST:
            actor.post(
                NodeLost(
                    node_id=node_id,
                    fault_time=state.clock.now(),
                    reason="it was declared lost before this job could hear of it",
                    gone=entry is None,  # an administrator had it removed
                )
            )
        elif entry.node.state in (NodeState.DRAINING, NodeState.DRAINED):
            actor.post(DrainWanted(node_id=node_id))
        elif node_id in run.draining:
            actor.post(DrainEnded(node_id=node_id))
