"""The nodes in memory: who is there, when each was last seen, and what its engines do."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.agents.agent_messages import Hello
from planaria_coordinator.application.agents.dispatcher import Wire
from planaria_coordinator.domain.engines.node import EngineSnapshot, Node, NodeState
from planaria_coordinator.domain.engines.silence import (
    PROBE_ANSWER_SECONDS,
    Inquiry,
    Reach,
    Sight,
)
from planaria_coordinator.domain.job.requirements import NodeFacts


@dataclass(slots=True, kw_only=True)
class NodeEntry:
    """A node and what is known of it in memory."""

    node: Node
    last_seen_seconds: float
    wire: Wire | None = None
    """Its open session."""
    ended_seconds: float | None = None
    """When its last session was seen to end; None while one is open, and before the first."""
    has_left: bool = False
    """Whether its agent said that it ends, and its engines have ended."""
    snapshots: dict[str, EngineSnapshot] = field(default_factory=dict)
    peers_lost: dict[str, float] = field(default_factory=dict)
    """Its engines whose processes were seen to end by others and by nobody here."""
    suspected_seconds: float | None = None
    """When others last could not reach it, and it was asked for a heartbeat that has not come."""
    inquiry: Inquiry | None = None
    """What others were asked of it, since it has been silent."""
    silent_since_seconds: float | None = None
    """Since when it has not been heard, while it is silent and not lost."""
    stops_sent: set[str] = field(default_factory=set)
    """Engines that no job counts on and that were ordered to stop in this session."""

    @property
    def facts(self) -> NodeFacts:
        """What planning needs to know of it."""
        return NodeFacts(
            node_id=self.node.id,
            num_accelerators=self.node.num_accelerators,
            accelerator_kind=self.node.accelerator_kind,
            accelerator_memory_bytes=self.node.accelerator_memory_bytes,
        )

    @property
    def takes_work(self) -> bool:
        """Whether new work can be given to it now."""
        is_heard = self.wire is not None and self.silent_since_seconds is None
        return self.node.state is NodeState.READY and is_heard

    def sight(
        self,
        job_ids: Iterable[str] = (),
        addresses: Iterable[str] = (),
        *,
        has_stalled: bool = False,
    ) -> Sight:
        """Return what has been seen of it.

        Args:
            job_ids: jobs that have engines on it.
            addresses: where these listen.
            has_stalled: one of the jobs makes no progress.
        """
        return Sight(
            last_seen_seconds=self.last_seen_seconds,
            session_open=self.wire is not None,
            ended_seconds=self.ended_seconds,
            has_left=self.has_left,
            suspected_seconds=self.suspected_seconds,
            peer_lost=bool(self.peers_lost),
            job_ids=tuple(job_ids),
            addresses=tuple(addresses),
            has_stalled=has_stalled,
            inquiry=self.inquiry,
        )


class NodeRegistry:
    """Every node the coordinator knows; kept in step with the database by its callers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, NodeEntry] = {}
        self._is_blind = True
        self.look_wanted = asyncio.Event()
        """Set when something was heard that silent nodes are judged by."""

    @property
    def is_blind(self) -> bool:
        """Whether nobody has been heard since our start, since all fell silent, or since grace."""
        return self._is_blind

    def lose_sight(self) -> None:
        """All have fallen silent: they have time again from the first that is heard."""
        self._is_blind = True

    def load(self, nodes: Iterable[Node]) -> None:
        """Take what the database knows; every node has time to connect."""
        self._is_blind = True
        now = self._clock.monotonic()
        for node in nodes:
            self._entries[node.id] = NodeEntry(node=node, last_seen_seconds=now)

    def __iter__(self) -> Iterator[NodeEntry]:
        return iter(tuple(self._entries.values()))

    def get(self, node_id: str) -> NodeEntry | None:
        return self._entries.get(node_id)

    def require(self, node_id: str) -> NodeEntry:
        """Return a node. Raises NODE_NOT_FOUND."""
        entry = self._entries.get(node_id)
        if entry is None:
            raise PlanariaError(
                ErrorReason.NODE_NOT_FOUND, f"there is no node {node_id}", {"node_id": node_id}
            )
        return entry

    def put(self, node: Node) -> NodeEntry:
        """Insert or replace what the database knows of a node."""
        entry = self._entries.get(node.id)
        if entry is None:
            entry = NodeEntry(node=node, last_seen_seconds=self._clock.monotonic())
            self._entries[node.id] = entry
        entry.node = node
        return entry

    def remove(self, node_id: str) -> None:
        self._entries.pop(node_id, None)

    def view(self, node_id: str) -> Node:
        """Return a node with its engines, as users see it. Raises NODE_NOT_FOUND."""
        entry = self.require(node_id)
        engines = tuple(entry.snapshots[engine_id] for engine_id in sorted(entry.snapshots))
        return replace(entry.node, engines=engines, silent_since_time=self.silent_since_time(entry))

    def silent_since_time(self, entry: NodeEntry) -> datetime | None:
        """Return since when a silent node has not been heard; None of one that is not silent."""
        if entry.silent_since_seconds is None:
            return None
        silence_seconds = self._clock.monotonic() - entry.silent_since_seconds
        return self._clock.now() - timedelta(seconds=silence_seconds)

    def views(self) -> tuple[Node, ...]:
        """Return all nodes by id."""
        return tuple(self.view(node_id) for node_id in sorted(self._entries))

    def heard(self, entry: NodeEntry) -> None:
        """A node has said something. From the first that does, the others have time to do so."""
        now = self._clock.monotonic()
        entry.last_seen_seconds = now
        entry.inquiry = None
        if self._is_blind:
            self._is_blind = False
            for other in self._entries.values():
                other.last_seen_seconds = now

    def beat(self, entry: NodeEntry, snapshots: Iterable[EngineSnapshot]) -> None:
        """A node is alive."""
        self.heard(entry)
        entry.suspected_seconds = None
        entry.node = replace(entry.node, heartbeat_time=self._clock.now())
        entry.snapshots = {snapshot.engine_id: snapshot for snapshot in snapshots}

    def suspect(self, node_id: str) -> None:
        """Others cannot reach a node's machine: it is silent unless it answers at once."""
        entry = self._entries.get(node_id)
        if entry is None or entry.suspected_seconds is not None:
            return
        entry.suspected_seconds = self._clock.monotonic()
        self.look_wanted.set()
        if entry.wire is not None:
            entry.wire.echo()

    def answered(self, asker: str, probe_id: str, reach: Reach | None) -> None:
        """A node that was asked says whether it reaches another.

        Late answers change nothing, but that it was reached is true however late it is heard.
        """
        node_id = probe_id.partition("/")[0]
        entry = self._entries.get(node_id)
        inquiry = entry.inquiry if entry is not None else None
        if entry is None or inquiry is None or reach is None:
            return
        is_late = self._clock.monotonic() > inquiry.asked_seconds + PROBE_ANSWER_SECONDS
        counts = reach is Reach.REACHABLE or not is_late
        if asker in inquiry.asked and probe_id == inquiry.probe_id and counts:
            answers = {**inquiry.answers, asker: inquiry.answers.get(asker, reach)}
            entry.inquiry = replace(inquiry, answers=answers)
            self.look_wanted.set()

    def excuse(self, seconds: float) -> None:
        """Wait so much longer for answers: the coordinator itself was blocked."""
        for entry in self._entries.values():
            if (inquiry := entry.inquiry) is not None:
                asked_seconds = inquiry.asked_seconds + seconds
                entry.inquiry = replace(inquiry, asked_seconds=asked_seconds)

    def grant_grace(self) -> None:
        """Count no silence for the time in which the coordinator itself was blocked."""
        now = self._clock.monotonic()
        self._is_blind = True
        for entry in self._entries.values():
            entry.last_seen_seconds = now
            entry.suspected_seconds = None
            entry.inquiry = None


def joined_node(hello: Hello, known: Node | None, clock: Clock) -> Node:
    """Return the node that a Hello makes: a lost one is ready again, any other keeps its state.

    One whose agent was asked to end is what it was before that.
    """
    state = known.state if known is not None else NodeState.READY
    before_leaving = known.state_before_leaving if known is not None else None
    if known is not None and before_leaving is not None and known.agent_id != hello.agent_id:
        state, before_leaving = before_leaving, None
    return Node(
        id=hello.node_id,
        state=NodeState.READY if state is NodeState.LOST else state,
        state_before_leaving=before_leaving,
        address=hello.advertise_address,
        num_accelerators=hello.num_accelerators,
        accelerator_kind=hello.accelerator_kind,
        accelerator_memory_bytes=hello.accelerator_memory_bytes,
        agent_id=hello.agent_id,
        agent_pid=hello.pid,
        version=hello.version,
        labels=hello.labels,
        boot_id=hello.boot_id,
        join_time=known.join_time if known is not None else clock.now(),
        heartbeat_time=clock.now(),
    )
