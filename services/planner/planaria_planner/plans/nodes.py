"""Nodes as the planner sees them: a name, a kind, and how fast it was measured to be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planaria_common.errors import invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that may be used.

    Attributes:
        node_id: its name, unique.
        kind: index of its kind in the profile.
        relative_speed: measured speed relative to its kind; 0.5 takes twice as long.
    """

    node_id: str
    kind: int = 0
    relative_speed: float = 1.0


def in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return nodes by kind, from the fastest to the slowest, then by name."""
    return tuple(sorted(nodes, key=lambda node: (node.kind, -node.relative_speed, node.node_id)))


def nodes_per_kind(nodes: Sequence[Node], num_kinds: int) -> tuple[int, ...]:
    """Return how many nodes there are of each kind."""
    return tuple(sum(node.kind == kind for node in nodes) for kind in range(num_kinds))


def check_nodes(nodes: Sequence[Node]) -> None:
    """Raise INVALID_ARGUMENT when a name comes twice or a speed is not positive."""
    seen: set[str] = set()
    for node in nodes:
        if not node.node_id or node.node_id in seen:
            wrong = "comes twice" if node.node_id else "is empty"
            problem = f"the node id {node.node_id!r} {wrong}; ids are unique"
            raise invalid("nodes", problem, node_id=node.node_id)
        seen.add(node.node_id)
        if not 0 < node.relative_speed < float("inf"):
            speed = f"relative_speed of {node.node_id} is {node.relative_speed}"
            raise invalid("nodes", f"{speed}; it must be positive", node_id=node.node_id)
