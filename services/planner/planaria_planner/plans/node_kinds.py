"""Few kinds of node, so that the search over their counts stays small.

Agents report memory to the byte, so equal machines easily come as many kinds. Kinds that the cost
model cannot tell apart are merged, which changes nothing. Where more than three remain, the most
alike are merged too, as if all their nodes had the least of what either has: the plan is valid on
the real nodes, and no slower there than predicted.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from planaria_planner.cost.profile import ModelProfile, NodeKind
from planaria_planner.plans.nodes import Node

MAX_KINDS = 3
"""Up to so many a pipeline may mix."""

MOST_PURE_KINDS = 8
"""Up to so many are distinguished where each pipeline is of one kind."""


def merge_kinds(
    profile: ModelProfile, nodes: Sequence[Node], most_kinds: int = MAX_KINDS
) -> tuple[ModelProfile, tuple[Node, ...]]:
    """Return the profile with at most so many kinds, and the nodes by their new kinds.

    Kinds without nodes are left out, unless there are no nodes at all.
    """
    if not nodes:
        return profile, ()
    clipped = {
        index: _clipped(profile, profile.hardware.node_kinds[index])
        for index in {node.kind for node in nodes}
    }
    groups: dict[NodeKind, list[Node]] = {}
    for node in nodes:
        groups.setdefault(clipped[node.kind], []).append(node)
    while len(groups) > most_kinds:
        one, other = min(
            itertools.combinations(sorted(groups, key=_order), 2),
            key=lambda pair: _loss(*pair),
        )
        merged = _worst_of(one, other)
        members = [
            replace(node, relative_speed=node.relative_speed * kind.relative_speed)
            for kind in (one, other)
            for node in groups.pop(kind)
        ]
        scaled = [
            replace(node, relative_speed=node.relative_speed / merged.relative_speed)
            for node in members
        ]
        groups.setdefault(merged, []).extend(scaled)
    kinds = sorted(groups, key=_order)
    hardware = replace(
        profile.hardware,
        node_kinds=tuple(replace(kind, name=str(index)) for index, kind in enumerate(kinds)),
    )
    by_kind = (
        node if node.kind == index else replace(node, kind=index)
        for index, kind in enumerate(kinds)
        for node in groups[kind]
    )
    return replace(profile, hardware=hardware), tuple(by_kind)


def are_few(profile: ModelProfile, nodes: Sequence[Node]) -> bool:
    """Whether `merge_kinds` only merges kinds that the cost model cannot tell apart."""
    kinds = {profile.hardware.node_kinds[node.kind] for node in nodes}
    return len({_clipped(profile, kind) for kind in kinds}) <= MAX_KINDS


def _clipped(profile: ModelProfile, kind: NodeKind) -> NodeKind:
    """Return a kind without its name and without memory that nothing could ever fill."""
    most_bytes = sum(
        layer.state_bytes + profile.num_layers * layer.activation_bytes for layer in profile.layers
    )
    memory_bytes = min(kind.accelerator_memory_bytes, max(most_bytes, 1))
    return replace(kind, name="", accelerator_memory_bytes=memory_bytes)


def _order(kind: NodeKind) -> tuple[float, ...]:
    """The best kind first: the first one is the default."""
    return (-kind.accelerators_per_node, -kind.relative_speed, -kind.accelerator_memory_bytes)


def _worst_of(one: NodeKind, other: NodeKind) -> NodeKind:
    """Return a kind that both can stand for, at the higher speed: slow nodes are marked slow."""
    return NodeKind(
        name="",
        accelerators_per_node=min(one.accelerators_per_node, other.accelerators_per_node),
        accelerator_memory_bytes=min(one.accelerator_memory_bytes, other.accelerator_memory_bytes),
        relative_speed=max(one.relative_speed, other.relative_speed),
    )


def _loss(one: NodeKind, other: NodeKind) -> float:
    """How much is lost by taking two kinds for one."""
    return sum(
        1 - min(a, b) / max(a, b)
        for a, b in (
            (one.accelerators_per_node, other.accelerators_per_node),
            (one.accelerator_memory_bytes, other.accelerator_memory_bytes),
            (one.relative_speed, other.relative_speed),
        )
    )
