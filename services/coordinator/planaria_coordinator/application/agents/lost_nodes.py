"""Declaring nodes lost: first in the database, then to the jobs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from planaria_common.logging import get_logger
from planaria_coordinator.application.agents.node_registry import NodeEntry
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.engines.silence import Loss
from planaria_coordinator.domain.job.event import EventDraft
from planaria_coordinator.domain.job.signals import NodeLost

log = get_logger("nodes")


async def declare_lost(state: SharedState, losses: Sequence[tuple[NodeEntry, Loss]]) -> None:
    """Store that nodes are lost, and tell the jobs that hold them; the caller holds `node_lock`.

    Losses that are known at the same moment are stored together, and jobs hear of all at once.

    Raises:
        UnavailableError: the database does not answer. Agents could not come back meanwhile.
    """
    nodes = [replace(entry.node, state=NodeState.LOST) for entry, _ in losses]
    drafts = [_draft(state, entry, loss) for entry, loss in losses]
    signals = [_signal(state, entry, loss) for entry, loss in losses]
    try:
        await state.save_nodes(nodes, drafts)
    except Exception:  # ticks that fail one after another would keep jobs from their deadlines
        state.nodes.grant_grace()
        raise
    for (entry, loss), draft in zip(losses, drafts, strict=True):
        log.warning(draft.type, node_id=entry.node.id, cause=loss.reason)
        _forget(state, entry)
    for signal in signals:
        for actor in state.holders(signal.node_id):
            actor.post(signal)


def _draft(state: SharedState, entry: NodeEntry, loss: Loss) -> EventDraft:
    node_id = entry.node.id
    if entry.has_left and entry.node.state is NodeState.DRAINED:
        return state.draft("node_left", f"{node_id} has left: {loss.reason}", node_id=node_id)
    return state.draft("node_lost", f"{node_id} is lost: {loss.reason}", node_id=node_id)


def _signal(state: SharedState, entry: NodeEntry, loss: Loss) -> NodeLost:
    silence_seconds = state.clock.monotonic() - entry.last_seen_seconds
    now = state.clock.now()
    # With a process seen to end, the fault is of this moment; silence began with the last beat.
    fault_time = now if entry.peers_lost else now - timedelta(seconds=silence_seconds)
    return NodeLost(
        node_id=entry.node.id, fault_time=fault_time, reason=loss.reason, gone=loss.gone
    )


def _forget(state: SharedState, entry: NodeEntry) -> None:
    wire, entry.wire = entry.wire, None
    entry.snapshots = {}
    entry.peers_lost.clear()
    entry.inquiry = entry.silent_since_seconds = None
    if wire is not None:
        state.dispatcher.detach(entry.node.id, wire)
        wire.end()  # if it is alive after all, it connects again and joins afresh
