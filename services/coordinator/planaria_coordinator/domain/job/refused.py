"""Nodes that cannot serve a job, and what it fails with when no node can."""

from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.job import JobError
from planaria_coordinator.domain.job.turn import Turn


def refuse_node(turn: Turn, node_id: str, reason: str) -> None:
    """Do without a node for the rest of this job."""
    turn.change(refused={**turn.run.refused, node_id: reason})
    turn.stop_engines([e.id for e in turn.run.engines.values() if e.node_id == node_id], reason)
    turn.release_empty_nodes()
    turn.emit("node_refused", f"{node_id} cannot serve this job: {reason}", node_id=node_id)


def note_start_failure(turn: Turn, failure: Failure) -> None:
    """Note why the job could not start; it fails with this once all nodes have been refused."""
    error = JobError(
        reason=failure.reason, message=failure.message, metadata=dict(failure.metadata)
    )
    turn.change(start_failure=error)
