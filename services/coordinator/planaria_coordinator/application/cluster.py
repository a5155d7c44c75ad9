"""What users do with nodes. REST and gRPC are two faces of this class."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from planaria_coordinator.application.agents.lost_nodes import declare_lost
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import Page
from planaria_coordinator.application.state import SharedState, wrong_state
from planaria_coordinator.domain.engines.node import Node, NodeState
from planaria_coordinator.domain.engines.silence import Loss
from planaria_coordinator.domain.job.signals import DrainEnded, DrainWanted, NodeLost

_EVICTED = "an administrator says that it is gone"
_ALIVE = (NodeState.READY, NodeState.CORDONED, NodeState.DRAINING, NodeState.DRAINED)


class Cluster:
    """Reads and changes nodes."""

    def __init__(self, state: SharedState) -> None:
        self._state = state

    async def list(self, page: PageRequest) -> Page[Node]:
        """List nodes by id with their engines; 1,000 by default."""
        size = page.or_default(1000).page_size
        nodes = [node for node in self._state.nodes.views() if node.id > page.page_token]
        token = nodes[size - 1].id if len(nodes) > size else ""
        return Page(items=tuple(nodes[:size]), next_page_token=token)

    def all(self) -> tuple[Node, ...]:
        """Return every node, by id."""
        return self._state.all_nodes()

    async def get(self, node_id: str) -> Node:
        """Read a node. Raises NODE_NOT_FOUND."""
        return self._state.nodes.view(node_id)

    async def cordon(self, node_id: str, *, request_id: str = "") -> Node:
        """Keep new work off a node. Idempotent. Raises NODE_NOT_FOUND or WRONG_STATE."""
        return await self._change(
            node_id, "cordon_node", request_id, (NodeState.READY, NodeState.CORDONED),
            NodeState.CORDONED, "takes no new work",
        )  # fmt: skip

    async def uncordon(self, node_id: str, *, request_id: str = "") -> Node:
        """End a cordon or a drain. Idempotent. Raises NODE_NOT_FOUND or WRONG_STATE."""
        return await self._change(
            node_id, "uncordon_node", request_id, _ALIVE, NodeState.READY, "takes work again"
        )

    async def drain(self, node_id: str, *, request_id: str = "") -> Node:
        """Free a node of its work without losing a microbatch. Idempotent.

        Raises:
            PlanariaError: NODE_NOT_FOUND or WRONG_STATE.
        """
        node = self._state.nodes.require(node_id).node
        if node.state is NodeState.DRAINED:
            return await self.get(node_id)
        return await self._change(
            node_id, "drain_node", request_id, _ALIVE, NodeState.DRAINING, "is being freed"
        )

    async def drain_leaving(self, node_id: str) -> None:
        """Free a node whose machine is about to go away. Raises NODE_NOT_FOUND or WRONG_STATE."""
        words = "is being freed: its agent was asked to end"
        await self._state.carry_out(
            self._set_state(node_id, _ALIVE, NodeState.DRAINING, words, leaves=True)
        )

    async def _change(
        self,
        node_id: str,
        method: str,
        request_id: str,
        allowed: tuple[NodeState, ...],
        target: NodeState,
        words: str,
    ) -> Node:
        change = partial(self._set_state, node_id, allowed, target, words)
        await self._make(request_id, method, node_id, change)
        return await self.get(node_id)

    async def _make(
        self, request_id: str, method: str, node_id: str, change: Callable[[], Awaitable[None]]
    ) -> None:
        state, contents = self._state, {"node_id": node_id}
        await state.carry_out(state.requests.make(request_id, method, contents, node_id, change))

    async def _set_state(
        self,
        node_id: str,
        allowed: tuple[NodeState, ...],
        target: NodeState,
        words: str,
        *,
        leaves: bool = False,
    ) -> None:
        state = self._state
        async with state.node_lock:
            node = state.nodes.require(node_id).node
            if node.state not in allowed:
                expected = " or ".join(sorted(set(allowed)))
                raise wrong_state(node_id, node.state, f"it would have to be {expected}")
            before_leaving = node.state if leaves else None
            if node.state is not target or node.state_before_leaving is not before_leaving:
                event_type = f"node_{target.lower()}"
                draft = state.draft(event_type, f"{node_id} {words}", node_id=node_id)
                changed = replace(node, state=target, state_before_leaving=before_leaving)
                await state.save_node(changed, [draft])
        self._tell_jobs(node_id, target)

    def _tell_jobs(self, node_id: str, target: NodeState) -> None:
        for actor in self._state.holders(node_id):
            if target is NodeState.DRAINING:
                actor.post(DrainWanted(node_id=node_id))
            elif target is NodeState.READY:
                actor.post(DrainEnded(node_id=node_id))

    async def evict(self, node_id: str, *, request_id: str = "") -> Node:
        """Declare a node lost that is gone for good, with all that it holds. Idempotent.

        Should its agent come back, it joins afresh. Raises NODE_NOT_FOUND.
        """
        await self._make(request_id, "evict_node", node_id, partial(self._evict, node_id))
        return await self.get(node_id)

    async def _evict(self, node_id: str) -> None:
        state = self._state
        async with state.node_lock:
            entry = state.nodes.require(node_id)
            if entry.node.state is not NodeState.LOST:
                await declare_lost(state, [(entry, Loss(reason=_EVICTED, gone=True))])
        for actor in tuple(state.actors.values()):
            if any(h.node.node_id == node_id for h in actor.run.absent.values()):
                actor.post(
                    NodeLost(
                        node_id=node_id, fault_time=state.clock.now(), reason=_EVICTED, gone=True
                    )
                )

    async def remove(self, node_id: str, *, request_id: str = "") -> None:
        """Forget a node that is lost or drained, and what jobs had on it.

        Raises:
            PlanariaError: NODE_NOT_FOUND or WRONG_STATE.
        """
        await self._make(request_id, "remove_node", node_id, partial(self._forget, node_id))

    async def _forget(self, node_id: str) -> None:
        state = self._state
        async with state.node_lock:
            entry = state.nodes.require(node_id)
            gone = (NodeState.LOST, NodeState.DRAINED)
            if entry.node.state not in gone:
                expected = "only a node that is LOST or DRAINED can be removed: drain it first"
                raise wrong_state(node_id, entry.node.state, expected)
            if entry.wire is not None:
                expected = "its agent still runs: stop planaria-worker there first"
                raise wrong_state(node_id, entry.node.state, expected)
            draft = state.draft("node_removed", f"{node_id} is forgotten", node_id=node_id)
            async with state.database.unit_of_work() as work:
                await work.nodes.remove(node_id)
                await work.events.append([draft])
                await work.commit()
            state.nodes.remove(node_id)
        for actor in state.holders(node_id):
            reason = "an administrator removed it"
            now = state.clock.now()
            actor.post(NodeLost(node_id=node_id, fault_time=now, reason=reason, gone=True))
        state.event_changes.notify()
