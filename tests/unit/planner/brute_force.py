"""An exhaustive planner that shares no code with the real one: try every partition and every plan.

It states the cost model of planning.md 1 a second time, from the text, in plain loops.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from planaria_planner.cost.profile import ModelProfile

GroupT = TypeVar("GroupT")

Cut = tuple[int, int, int, int]
"""A stage: first layer, end layer, node, accelerators."""


@dataclass(frozen=True)
class Partition:
    """One way to run the model: kinds of its nodes, stages, and what they cost."""

    node_kinds: tuple[int, ...]
    cuts: tuple[Cut, ...]
    a: float
    b: float
    cap: float

    def seconds(self, microbatches: int) -> float:
        return self.a + self.b * microbatches if microbatches <= self.cap else math.inf


def every_partition(
    profile: ModelProfile, nodes_per_kind: tuple[int, ...], max_width: int | None = None
) -> Iterator[Partition]:
    """Yield every partition of the model that fits on at most so many nodes of each kind."""
    kinds = profile.hardware.node_kinds

    def extend(
        cuts: tuple[Cut, ...], node_kinds: tuple[int, ...], used: int
    ) -> Iterator[tuple[tuple[Cut, ...], tuple[int, ...]]]:
        first = cuts[-1][1] if cuts else 0
        if first == len(profile.layers):
            yield cuts, node_kinds
            return
        for end in range(first + 1, len(profile.layers) + 1):
            for width in profile.layers[0].forward_seconds:
                if max_width is not None and width > max_width:
                    continue
                if cuts and used + width <= kinds[node_kinds[-1]].accelerators_per_node:
                    cut = (first, end, len(node_kinds) - 1, width)
                    yield from extend((*cuts, cut), node_kinds, used + width)
                for kind, limit in enumerate(nodes_per_kind):
                    if node_kinds.count(kind) == limit or width > kinds[kind].accelerators_per_node:
                        continue
                    cut = (first, end, len(node_kinds), width)
                    yield from extend((*cuts, cut), (*node_kinds, kind), width)

    for cuts, node_kinds in extend((), (), 0):
        partition = _cost(profile, cuts, node_kinds)
        if partition.cap >= 1:
            yield partition


def _cost(profile: ModelProfile, cuts: tuple[Cut, ...], node_kinds: tuple[int, ...]) -> Partition:
    hardware = profile.hardware
    cap = math.inf
    times = []
    for index, (first, end, node, width) in enumerate(cuts):
        layers = profile.layers[first:end]
        kind = hardware.node_kinds[node_kinds[node]]
        w = 0.0
        for layer in layers:
            w += (
                layer.forward_seconds[width] + layer.backward_seconds[width]
            ) / kind.relative_speed
        if index + 1 < len(cuts):
            same = cuts[index + 1][2] == node
            bandwidth = (
                hardware.intra_node_bytes_per_second
                if same
                else hardware.inter_node_bytes_per_second
            )
            w += 2 * (hardware.link_latency_seconds + layers[-1].output_bytes / bandwidth)
        times.append(w)
        state = sum(layer.state_bytes for layer in layers)
        activations = sum(layer.activation_bytes for layer in layers)
        to_end = len(cuts) - index
        memory = kind.accelerator_memory_bytes
        fits = [m for m in range(1, to_end + 1) if state + m * activations <= memory * width]
        if len(fits) < to_end:
            cap = min(cap, len(fits))
    parameters = sum(layer.parameter_bytes for layer in profile.layers[cuts[0][0] : cuts[0][1]])
    y = 2 * parameters / (cuts[0][3] * hardware.inter_node_bytes_per_second)
    b = max(times)
    return Partition(node_kinds=node_kinds, cuts=cuts, a=sum(times) - b + y, b=b, cap=cap)


def best_seconds(
    partitions: list[Partition],
    nodes_per_kind: tuple[int, ...],
    min_pipelines: int,
    num_microbatches: int,
    min_nodes: int = 1,
) -> float:
    """Return the least step time of any plan, infinity when there is none."""
    counts = sorted(
        {
            tuple(p.node_kinds.count(k) for k in range(len(nodes_per_kind)))
            for p in partitions
            if len(p.node_kinds) >= min_nodes
        }
    )
    seconds = {
        (count, m): min(
            p.seconds(m)
            for p in partitions
            if tuple(p.node_kinds.count(k) for k in range(len(nodes_per_kind))) == count
        )
        for count in counts
        for m in range(1, num_microbatches + 1)
    }

    @cache
    def best(left: tuple[int, ...], microbatches: int, needed: int) -> float:
        if microbatches == 0:
            return 0.0 if needed <= 0 else math.inf
        found = math.inf
        for count in counts:
            rest = tuple(have - use for have, use in zip(left, count, strict=True))
            if min(rest) < 0:
                continue
            for m in range(1, microbatches + 1):
                here = seconds[count, m]
                if here < found:
                    found = min(found, max(here, best(rest, microbatches - m, max(needed - 1, 0))))
        return found

    return best(nodes_per_kind, num_microbatches, min_pipelines)


def _groupings(nodes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every way to put some of the nodes into groups."""
    if not nodes:
        yield ()
        return
    first, rest = nodes[0], nodes[1:]
    yield from _groupings(rest)
    for bits in range(1 << len(rest)):
        group = (first, *(node for i, node in enumerate(rest) if bits >> i & 1))
        others = tuple(node for i, node in enumerate(rest) if not bits >> i & 1)
        for more in _groupings(others):
            yield (group, *more)


def best_seconds_on_named_nodes(
    partitions: list[Partition],
    nodes: tuple[tuple[int, float], ...],
    min_pipelines: int,
    num_microbatches: int,
) -> float:
    """Return the least step time over every way to group nodes, given as (kind, speed).

    A pipeline is as slow as its slowest node; any node may stay idle.
    """

    @cache
    def seconds(group: tuple[int, ...], microbatches: int) -> float:
        kinds = sorted(nodes[i][0] for i in group)
        slowest = min(nodes[i][1] for i in group)
        return min(
            (
                p.a / slowest + p.b / slowest * microbatches
                for p in partitions
                if sorted(p.node_kinds) == kinds and microbatches <= p.cap
            ),
            default=math.inf,
        )

    share = best_share(seconds)
    return min(
        (
            share(groups, num_microbatches)
            for groups in _groupings(tuple(range(len(nodes))))
            if len(groups) >= min_pipelines
        ),
        default=math.inf,
    )


def best_share(
    seconds: Callable[[GroupT, int], float],
) -> Callable[[tuple[GroupT, ...], int], float]:
    """Return what finds the least step time of groups, over every way to share microbatches."""

    @cache
    def share(groups: tuple[GroupT, ...], microbatches: int) -> float:
        if not groups:
            return 0.0 if microbatches == 0 else math.inf
        return min(
            (
                max(seconds(groups[0], m), share(groups[1:], microbatches - m))
                for m in range(1, microbatches + 1)
            ),
            default=math.inf,
        )

    return share
