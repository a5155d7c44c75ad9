"""Who may open a session: a node's agent, the same one again, or one in the place of the silent."""

import re

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_common.version import PROTOCOL_VERSION
from planaria_common.words import counted
from planaria_coordinator.application.agents.agent_messages import Hello
from planaria_coordinator.application.agents.agent_session import AgentSession
from planaria_coordinator.application.agents.node_registry import NodeEntry, joined_node
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.event import EventDraft

_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

log = get_logger("sessions")


class Sessions:
    """Opens sessions."""

    def __init__(self, state: SharedState) -> None:
        self._state = state

    async def open(self, hello: Hello) -> AgentSession:
        """Accept a node, or a node's agent again.

        Raises:
            PlanariaError: VERSION_MISMATCH, INVALID_ARGUMENT or NODE_NAME_TAKEN.
        """
        _check(hello)
        try:
            self._hear(hello)  # many may have to wait for a slow database
            return await self._let_in(hello)
        finally:
            self._hear(hello)  # also if it gives up meanwhile, and tries again

    def _hear(self, hello: Hello) -> None:
        entry = self._state.nodes.get(hello.node_id)
        old = entry.wire if entry is not None else None
        if entry is None or (isinstance(old, AgentSession) and old.agent_id != hello.agent_id):
            return  # it may be another node's agent, under the same name
        self._state.nodes.heard(entry)

    async def _let_in(self, hello: Hello) -> AgentSession:
        state = self._state
        async with state.node_lock:
            entry = state.nodes.get(hello.node_id)
            if entry is not None and isinstance(entry.wire, AgentSession):
                self._take_over(entry, entry.wire, hello)
            known = entry.node if entry is not None else None
            node = joined_node(hello, known, state.clock)
            drafts = []
            if known is None or known.state is NodeState.LOST:
                drafts.append(_joined(state, hello))
            await state.save_node(node, drafts)
            session = AgentSession(state, hello)
            session.attach(state.nodes.require(hello.node_id), hello.engines)
        log.info("session_opened", node_id=hello.node_id, agent_id=hello.agent_id)
        return session

    def _take_over(self, entry: NodeEntry, old: AgentSession, hello: Hello) -> None:
        """The same agent may connect again; another one only when the first has fallen silent."""
        silence_seconds = self._state.clock.monotonic() - entry.last_seen_seconds
        silent = silence_seconds > self._state.options.node_deadline_seconds
        if old.agent_id != hello.agent_id and not silent:
            raise PlanariaError(
                ErrorReason.NODE_NAME_TAKEN,
                f"another live agent is node {hello.node_id}: give this one another --node-id",
                {"node_id": hello.node_id},
            )
        old.end()


def _joined(state: SharedState, hello: Hello) -> EventDraft:
    return state.draft(
        "node_joined",
        f"{hello.node_id} at {hello.advertise_address} joined with "
        f"{counted(hello.num_accelerators, f'{hello.accelerator_kind} accelerator')}",
        node_id=hello.node_id,
    )


def _check(hello: Hello) -> None:
    if hello.protocol_version != PROTOCOL_VERSION:
        raise PlanariaError(
            ErrorReason.VERSION_MISMATCH,
            f"the coordinator speaks protocol {PROTOCOL_VERSION}, the agent of {hello.node_id} "
            f"{hello.protocol_version}: install the same version of planaria on both",
            {"expected": str(PROTOCOL_VERSION), "actual": str(hello.protocol_version)},
        )
    problems = {
        "node_id": "at most 63 letters, digits, '.', '_' or '-'"
        if not _NODE_NAME.fullmatch(hello.node_id)
        else "",
        "agent_id": "" if hello.agent_id else "a random name",
        "advertise_address": "" if hello.advertise_address else "an address others can reach",
        "num_accelerators": "" if hello.num_accelerators > 0 else "at least 1",
        "accelerator_kind": "" if hello.accelerator_kind in ("cpu", "cuda") else "cpu or cuda",
    }
    for field, expected in problems.items():
        if expected:
            raise PlanariaError(
                ErrorReason.INVALID_ARGUMENT,
                f"{field} must be {expected}",
                {"field": field, "expected": expected},
            )
