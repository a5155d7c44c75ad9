"""Declaring nodes lost: first in the database, then to the jobs."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from planaria_common.logging import get_logger
from planaria_coordinator.application.agents.node_registry import NodeEntry
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.signals import NodeLost

log = get_logger("nodes")


async def declare_lost_nodes(state: SharedState, among: Collection[str] | None = None) -> None:
    """Declare every node lost that is, and tell the jobs that hold it.

    Args:
        state: of the coordinator.
        among: nodes of which something was heard; None: all.
    """
    async with state.node_lock:
        for entry, why in state.nodes.lost(state.held_nodes, among):
            await _declare_lost(state, entry, why)


async def _declare_lost(state: SharedState, entry: NodeEntry, why: str) -> None:
    node_id = entry.node.id
    silence_seconds = state.clock.monotonic() - entry.last_seen_seconds
    now = state.clock.now()
    # With a process seen to end, the fault is of this moment; silence began with the last beat.
    fault_time = now if entry.peers_lost else now - timedelta(seconds=silence_seconds)
    draft = state.draft("node_lost", f"{node_id} is lost: {why}", node_id=node_id)
    if entry.has_left and entry.node.state is NodeState.DRAINED:
        draft = state.draft("node_left", f"{node_id} has left: {why}", node_id=node_id)
    await state.save_node(replace(entry.node, state=NodeState.LOST), [draft])
    log.warning(draft.type, node_id=node_id, cause=why)
    wire, entry.wire = entry.wire, None
    entry.snapshots = {}
    ended = frozenset(entry.peers_lost) if entry.session_ended else frozenset()
    entry.peers_lost.clear()
    if wire is not None:
        state.dispatcher.detach(node_id, wire)
        wire.end()  # if it is alive after all, it connects again and joins afresh
    for actor in state.holders(node_id):
        # The agent closed its connection, and so did all that the job had there.
        gone = ended.issuperset(e.id for e in actor.engines_on(node_id) if e.prepared)
        actor.post(NodeLost(node_id=node_id, fault_time=fault_time, reason=why, gone=gone))
