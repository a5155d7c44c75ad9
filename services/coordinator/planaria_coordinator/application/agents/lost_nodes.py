"""Declaring nodes lost: first in the database, then to the jobs."""

from dataclasses import replace
from datetime import timedelta

from planaria_common.errors import UnavailableError
from planaria_common.logging import get_logger
from planaria_coordinator.application.agents.node_registry import NodeEntry
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.engines.silence import Loss, seen_to_end
from planaria_coordinator.domain.job.signals import NodeLost

log = get_logger("nodes")


async def declare_ended(state: SharedState, entry: NodeEntry) -> None:
    """Declare a node lost at once if its agent has left, or it and an engine were seen to end."""
    async with state.node_lock:
        is_known = state.nodes.get(entry.node.id) is entry
        if is_known and entry.node.state is not NodeState.LOST:
            loss = seen_to_end(entry.sight())
            if loss is not None:
                await declare_lost(state, entry, loss)


async def declare_lost(state: SharedState, entry: NodeEntry, loss: Loss) -> None:
    """Store that a node is lost, and tell the jobs that hold it; the caller holds `node_lock`.

    Raises:
        UnavailableError: the database does not answer. Agents could not come back meanwhile.
    """
    node_id = entry.node.id
    silence_seconds = state.clock.monotonic() - entry.last_seen_seconds
    now = state.clock.now()
    # With a process seen to end, the fault is of this moment; silence began with the last beat.
    fault_time = now if entry.peers_lost else now - timedelta(seconds=silence_seconds)
    draft = state.draft("node_lost", f"{node_id} is lost: {loss.reason}", node_id=node_id)
    if entry.has_left and entry.node.state is NodeState.DRAINED:
        draft = state.draft("node_left", f"{node_id} has left: {loss.reason}", node_id=node_id)
    try:
        await state.save_node(replace(entry.node, state=NodeState.LOST), [draft])
    except UnavailableError:
        state.nodes.grant_grace()
        raise
    log.warning(draft.type, node_id=node_id, cause=loss.reason)
    ended = frozenset(entry.peers_lost) if entry.session_ended else frozenset()
    wire, entry.wire = entry.wire, None
    entry.snapshots = {}
    entry.peers_lost.clear()
    entry.inquiry = entry.silent_since_seconds = None
    if wire is not None:
        state.dispatcher.detach(node_id, wire)
        wire.end()  # if it is alive after all, it connects again and joins afresh
    for actor in state.holders(node_id):
        # The agent closed its connection, and so did all that the job had there.
        known = {e.id for e in actor.engines_on(node_id) if e.prepared}
        gone = bool(known) and ended >= known
        actor.post(
            NodeLost(
                node_id=node_id,
                fault_time=fault_time,
                reason=loss.reason,
                gone=gone or loss.gone,
            )
        )
