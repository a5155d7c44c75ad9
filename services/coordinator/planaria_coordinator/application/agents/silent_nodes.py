"""Nodes that are silent: others are asked about them, jobs say so, and lost ones are declared."""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set

from planaria_common.logging import get_logger
from planaria_common.words import names_of
from planaria_coordinator.application.agents.agent_messages import Probe
from planaria_coordinator.application.agents.lost_nodes import declare_lost
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.engines.silence import (
    PROBE_SECONDS,
    Inquiry,
    Judgement,
    Patience,
    Sight,
    judge,
    sees_nobody,
)
from planaria_coordinator.domain.job.signals import AgentReturned
from planaria_coordinator.domain.placement.replicas import holdings_of_placement

MAX_ADDRESSES = 3
"""So many engines of a node are probed: one that answers suffices."""

log = get_logger("nodes")


class SilentNodes:
    """Judges silent nodes, a tick after the other."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._silent: Set[str] = frozenset()
        """Those that jobs were told of."""
        self.absent: Set[str] = frozenset()
        """Nodes whose engines cannot be expected to answer: their agents are away, or silent."""
        self.stalled_jobs: set[str] = set()
        """Jobs that should have made progress for a node deadline, and have not."""

    async def watch(self) -> None:
        """Look at all nodes: ask about the silent, tell of them, and declare the lost.

        Raises:
            UnavailableError: the database does not answer; the next look tries again.
        """
        state = self._state
        away = {entry.node.id for entry in state.nodes if entry.wire is None}
        sights = self._sights() if self._is_anybody_silent() else {}
        judgement = self._judge(sights)
        self.absent = away | judgement.absent
        self._ask(judgement.asked, sights)
        self._tell(judgement)
        if judgement.lost:
            async with state.node_lock:
                # While others had the lock, some may have been heard.
                still = [
                    (entry, loss)
                    for node_id, loss in judgement.lost.items()
                    if (entry := state.nodes.get(node_id)) is not None
                    and entry.last_seen_seconds == sights[node_id].last_seen_seconds
                    and entry.node.state is not NodeState.LOST
                ]
                if still:
                    await declare_lost(state, still)
                    self._silent -= {entry.node.id for entry, _ in still}

    def _is_anybody_silent(self) -> bool:
        """Whether there is anything to judge: in most cases there is not."""
        state = self._state
        heard_seconds = state.clock.monotonic() - state.options.node_deadline_seconds
        return any(
            entry.last_seen_seconds < heard_seconds
            or entry.suspected_seconds is not None
            or (entry.peers_lost and entry.ended_seconds is not None)
            or entry.has_left
            for entry in state.nodes
            if entry.node.state is not NodeState.LOST
        )

    def _judge(self, sights: Mapping[str, Sight]) -> Judgement:
        options, nodes = self._state.options, self._state.nodes
        now_seconds = self._state.clock.monotonic()
        patience = Patience(
            heartbeat_interval_seconds=options.heartbeat_interval_seconds,
            node_deadline_seconds=options.node_deadline_seconds,
            agent_lease_seconds=options.agent_lease_seconds,
        )
        if sees_nobody(now_seconds, sights, patience):
            nodes.lose_sight()
        return judge(
            now_seconds, sights, self._holders_of_layers(), patience, is_blind=nodes.is_blind
        )

    def _sights(self) -> Mapping[str, Sight]:
        jobs: dict[str, dict[str, None]] = {}
        addresses: dict[str, list[str]] = {}
        for actor in self._state.actors.values():
            for engine in actor.run.engines.values():
                jobs.setdefault(engine.node_id, {})[actor.job_id] = None
                if engine.data_address:
                    addresses.setdefault(engine.node_id, []).append(engine.data_address)
        return {
            entry.node.id: entry.sight(
                jobs.get(entry.node.id, ()),
                addresses.get(entry.node.id, [])[:MAX_ADDRESSES],
                has_stalled=not self.stalled_jobs.isdisjoint(jobs.get(entry.node.id, ())),
            )
            for entry in self._state.nodes
            if entry.node.state is not NodeState.LOST
        }

    def _holders_of_layers(self) -> Iterator[frozenset[str]]:
        for actor in self._state.actors.values():
            run = actor.run
            if run.in_force is None:
                continue
            holders: dict[int, set[str]] = {}
            held = holdings_of_placement(run.in_force, run.engines, run.requirements)
            for engine_id, layers in held.items():
                for layer in layers:
                    holders.setdefault(layer, set()).add(node_of(engine_id))
            yield from set(map(frozenset, holders.values()))

    def _ask(self, asked: Mapping[str, tuple[str, ...]], sights: Mapping[str, Sight]) -> None:
        state = self._state
        for node_id, asker_ids in asked.items():
            entry = state.nodes.require(node_id)
            probe = Probe(
                probe_id=f"{node_id}/{state.new_id('probe')}",
                addresses=sights[node_id].addresses,
                timeout_seconds=PROBE_SECONDS,
            )
            entry.inquiry = Inquiry(
                probe_id=probe.probe_id,
                asked_seconds=state.clock.monotonic(),
                asked=frozenset(asker_ids),
                was_reached=entry.inquiry is not None and entry.inquiry.leaves_reached,
            )
            log.info("probe_asked", node_id=node_id, asked=list(asker_ids))
            for asker_id in asker_ids:
                wire = state.nodes.require(asker_id).wire
                if wire is not None:
                    wire.probe(probe)

    def _tell(self, judgement: Judgement) -> None:
        """Tell jobs which of their nodes have fallen silent, and which are heard again."""
        known = self._silent
        lost = {e.node.id for e in self._state.nodes if e.node.state is NodeState.LOST}
        # A loss is to be stored yet, and may not come to that.
        unheard = judgement.silent.keys() | judgement.absent | judgement.lost.keys()
        heard = known - unheard - lost
        self._silent = (known | judgement.silent.keys()) - heard - lost
        for entry in self._state.nodes:
            if entry.node.id in judgement.silent and entry.node.id not in known:
                entry.silent_since_seconds = entry.last_seen_seconds
            elif entry.node.id in heard:
                entry.silent_since_seconds = None
        for actor in self._state.actors.values():
            self._tell_of_silent(actor, judgement.silent, known)
            back = sorted(filter(actor.holds, heard))
            if back:
                self._emit(actor, "nodes_heard", f"{names_of(back)} {_is_or_are(back)} heard again")
            for node_id in back:
                actor.post(AgentReturned(node_id=node_id))

    def _tell_of_silent(
        self, actor: JobActor, silent: Mapping[str, str], known: Collection[str]
    ) -> None:
        by_reason: dict[str, list[str]] = {}
        for node_id in sorted(silent.keys() - known):
            if actor.holds(node_id):
                by_reason.setdefault(silent[node_id], []).append(node_id)
        for reason, node_ids in by_reason.items():
            message = f"{names_of(node_ids)} {_is_or_are(node_ids)} silent and not lost: {reason}"
            self._emit(actor, "nodes_silent", message)

    def _emit(self, actor: JobActor, event_type: str, message: str) -> None:
        log.warning(event_type, job_id=actor.job_id, message=message)
        self._state.run_in_background(actor.tell(event_type, message))


def _is_or_are(node_ids: Sequence[str]) -> str:
    return "is" if len(node_ids) == 1 else "are"
