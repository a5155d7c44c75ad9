"""Going through every state that a model may reach."""

from dataclasses import dataclass

from unit.coordinator.protocol.engine_state import ViolationError
from unit.coordinator.protocol.model import Model
from unit.coordinator.protocol.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search went through."""

    num_states: int
    num_ends: int
    placed_at_end: frozenset[frozenset[str]]
    """Of each end: nodes with a place in the newest plan."""


def search(model: Model) -> Found:
    """Go through every state.

    Raises:
        ViolationError: with the events that lead to what must never happen.
    """
    parents: dict[State, tuple[State, str] | None] = {model.first: None}
    waiting = [model.first]
    num_ends = 0
    placed_at_end: set[frozenset[str]] = set()
    while waiting:
        state = waiting.pop()
        try:
            if model.is_over(state):
                num_ends += 1
                placed_at_end.add(frozenset(model.newest(state)))
                continue
            next_states = list(model.steps(state))
            if not next_states:
                raise ViolationError("nothing can happen any more, and the job is not done")
            for event, successor in (*next_states, *model.requests(state), *model.faults(state)):
                if successor not in parents:
                    parents[successor] = (state, event)
                    model.check(successor)
                    waiting.append(successor)
        except ViolationError as error:
            raise ViolationError(f"{error}, after: {'; '.join(_path(parents, state))}") from error
    return Found(num_states=len(parents), num_ends=num_ends, placed_at_end=frozenset(placed_at_end))


def _path(parents: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    events: list[str] = []
    while (step := parents[state]) is not None:
        state, event = step
        events.append(event)
    return events[::-1]
