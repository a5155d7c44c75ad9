"""Everything at one moment, as the search of the protocol has it."""

from typing import NamedTuple, TypeVar

from planaria_coordinator.domain.engines.directive import Command
from unit.coordinator.protocol.engine_state import Member, Said

T = TypeVar("T")

NUM_LAYERS = 2
NUM_MICROBATCHES = 2


class State(NamedTuple):
    """Everything, at one moment."""

    run: int
    stored: int
    members: tuple[Member | None, ...]
    to_engines: tuple[tuple[tuple[int, Command], ...], ...]
    to_coordinator: tuple[tuple[tuple[str, int, Said], ...], ...]
    joined: frozenset[tuple[int, int, int, frozenset[int]]]
    """(plan, step, engine, gradients): what was given to sums."""
    votes: frozenset[tuple[int, int, int, int]]
    """(plan, step, engine, mark): votes for a commit."""
    unnoticed: frozenset[int]
    """The dead of which the coordinator does not know yet."""
    question: int
    """Number of the question that the planner has; -1: none."""
    num_faults: int
    num_crashes: int
    num_failures: int
    """How often an engine may yet fail to stage its assignment."""
    away: tuple[Member | None, ...]
    """Engines that nobody can reach; they do nothing meanwhile."""
    cut_off: frozenset[int]
    """Those of them of which the coordinator does not know yet."""
    num_absences: int
    """How often an engine may yet be cut off."""
    num_lacks: int
    """How often an engine may yet fail to make its groups, whoever lives."""
    num_takeovers: int = 0
    """How often another coordinator may yet take over from one that is frozen."""
    frozen: int = -1
    """Number of the run that the frozen coordinator knows; -1: there is none."""
    unsent: tuple[tuple[int, tuple[int, Command]], ...] = ()
    """What it has stored, and yet to send, by index."""
    told: frozenset[int] = frozenset()
    """Nodes that its successor has sent something to."""


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
