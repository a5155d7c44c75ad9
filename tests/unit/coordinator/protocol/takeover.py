"""The model of the protocol with a coordinator that is frozen, replaced, and wakes up.

It freezes at any moment: between two decisions, or when it has stored one and sent nothing of it.
Another one takes over and restores what is stored. At any later moment the old one wakes up. It
sends what it has yet to send, and decides on what it sees: it has not heard of some node for long.
"""

from collections.abc import Iterator
from typing import Any

from planaria_coordinator.domain.engines.directive import Command
from planaria_coordinator.domain.job.signals import NodeLost, Restarted
from unit.coordinator.protocol.engine_state import NOON
from unit.coordinator.protocol.model import Model
from unit.coordinator.protocol.state import State


class Guards:
    """What keeps a replaced coordinator from harm; `unit.guards.protocol` switches them off."""

    check_epoch: bool = True
    """A transaction fails when another coordinator has opened the database since."""
    refuse_lower_epoch: bool = True
    """An agent takes nothing from a coordinator after it has heard of its successor."""


class TakeoverModel(Model):
    """The model, with `num_takeovers`.

    Args:
        forgets: whether the database has lost what the frozen coordinator stored last, as after a
            failover to a copy. Then it wakes up when every agent has met its successor.
        model: as of `Model`.
    """

    def __init__(self, *, forgets: bool = False, **model: Any) -> None:
        self._forgets = forgets
        self.num_late = 0
        """How often the old coordinator had something to send when it woke up."""
        super().__init__(**model)

    _freezes = False
    """What is decided now is stored, and stays unsent."""
    _is_old = False
    """The coordinator that decides has been replaced."""

    def faults(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super().faults(state)
        if state.num_takeovers:
            for event, frozen in (("", state), *self._decided_and_unsent(state)):
                yield f"{event}; another coordinator takes over", self._take_over(frozen)

    def requests(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super().requests(state)
        if state.frozen >= 0:
            self._is_old = True
            try:
                woken = self._wake(state)
            finally:
                self._is_old = False
            yield from woken

    def _decided_and_unsent(self, state: State) -> list[tuple[str, State]]:
        self._freezes = True
        try:
            decided = [(event, after) for event, after in self.decisions(state) if after.unsent]
        finally:
            self._freezes = False
        if not self._forgets:
            return decided
        return [
            # Who is dead stays so, and the successor will notice.
            (event, after._replace(stored=state.stored, unnoticed=state.unnoticed))
            for event, after in decided
        ]

    def _take_over(self, state: State) -> State:
        restored = state._replace(
            frozen=-1 if Guards.check_epoch and not state.unsent else state.run,  # then it ends
            told=frozenset(range(len(self.nodes)) if self._forgets else ()),
            run=state.stored,
            question=-1,
            num_takeovers=state.num_takeovers - 1,
        )
        return self._decide(restored, Restarted(), "restarted")

    def _wake(self, state: State) -> list[tuple[str, State]]:
        """Send what was stored; the next transaction ends it, or it decides as if nothing were."""
        sent = state
        self.num_late += bool(state.unsent)
        for index, directive in state.unsent:
            sent = self._send(sent, index, directive)
        awake = sent._replace(frozen=-1, unsent=(), told=frozenset())
        found = [("the old coordinator wakes up", awake)]
        if Guards.check_epoch:
            return found
        for index, node in enumerate(self.nodes):
            signal = NodeLost(node_id=node, fault_time=NOON, reason="silent", gone=True)
            decided = self._decide(sent._replace(run=state.frozen), signal, "silent", index)
            after = decided._replace(
                run=state.run, question=state.question, frozen=-1, unsent=(), told=frozenset()
            )
            found.append((f"the old coordinator takes {node} for lost", after))
        return found

    def _send(self, state: State, index: int, directive: tuple[int, Command]) -> State:
        if self._freezes:
            return state._replace(unsent=(*state.unsent, (index, directive)))
        if self._is_old and index in state.told and Guards.refuse_lower_epoch:
            return state
        if not self._is_old and state.frozen >= 0:
            state = state._replace(told=state.told | {index})
        return super()._send(state, index, directive)
