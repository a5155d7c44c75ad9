"""Layers cut into pieces, so that several replicas send one at once (planning.md 5).

In units of a chunk this is a flow from layers to their holders, each of which sends at most T
units: the least T for which all units flow is found by search over maximum flows. Layers with the
same holders are one node of the network, so that it stays small.
"""

import bisect
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from planaria_planner.changes.inventory import Inventory
from planaria_planner.changes.layer_copies import LayerCopy, Want, busiest_bytes, choose_sources

_MOST_UNITS = 1 << 30
"""Units to copy in all, at most: SciPy's flows are 32 bits wide."""


def choose_pieces(
    missing: Mapping[str, Sequence[int]], inventory: Inventory, chunk_bytes: int
) -> tuple[LayerCopy, ...]:
    """Return what to copy from whom, by destination, layer and first byte.

    Layers are cut only where that puts fewer bytes on the busiest link than whole ones do.

    Args:
        missing: for each node the layers that it needs and lacks.
        inventory: who has them.
        chunk_bytes: pieces are multiples of it, the last one of a layer may be shorter; 0 for
            whole layers only.
    """
    whole = choose_sources(missing, inventory)
    if not chunk_bytes:
        return whole
    unheld = [copy for copy in whole if not copy.source]
    wants = [(copy.layer, copy.destination) for copy in whole if copy.source]
    total_bytes = sum(inventory.sizes[layer] for layer, _ in wants)
    chunk_bytes *= max(-(-total_bytes // (chunk_bytes * _MOST_UNITS)), 1)
    pieces = [*unheld, *_cut(inventory, wants, chunk_bytes)]
    ordered = tuple(sorted(pieces, key=lambda c: (c.destination, c.layer, c.first_byte)))
    return min(whole, ordered, key=busiest_bytes)


def _cut(inventory: Inventory, wants: Sequence[Want], chunk_bytes: int) -> list[LayerCopy]:
    sizes = inventory.sizes
    units = [max(-(-size // chunk_bytes), 1) for size in sizes]
    holders = {layer: inventory.holders_of(layer) for layer in {layer for layer, _ in wants}}
    groups: dict[tuple[str, ...], list[Want]] = {}
    for want in wants:
        groups.setdefault(holders[want[0]], []).append(want)
    received: dict[str, int] = {}
    for layer, node_id in wants:
        received[node_id] = received.get(node_id, 0) + units[layer]
    demand = [sum(units[layer] for layer, _ in group) for group in groups.values()]
    shares = _least_peak(list(groups), demand, max(received.values(), default=0))
    pieces = []
    for group, supply in zip(groups.values(), shares, strict=True):
        left = supply[::-1]
        for layer, node_id in group:
            first, end = 0, units[layer]
            while first < end:
                source, available = left.pop()
                taken = min(available, end - first)
                if taken < available:
                    left.append((source, available - taken))
                first_byte = first * chunk_bytes
                first += taken
                pieces.append(
                    LayerCopy(
                        layer=layer,
                        source=source,
                        destination=node_id,
                        first_byte=first_byte,
                        num_bytes=min(first * chunk_bytes, sizes[layer]) - first_byte,
                    )
                )
    return pieces


Supply = list[tuple[str, int]]
"""Who sends how many units of a group of layers."""


def _least_peak(
    groups: Sequence[Sequence[str]], demand: Sequence[int], enough: int
) -> list[Supply]:
    """Return who sends how much of each group so that the busiest sends least.

    Args:
        groups: for each group its holders.
        demand: for each group the units to be sent.
        enough: units that some node receives in any case: sending fewer gains nothing.
    """
    names = sorted({name for holders in groups for name in holders})
    if not names:
        return []
    network = _Network(groups, demand, names)
    total = sum(demand)
    least = max(-(-total // len(names)), min(enough, total))
    steps = range(least, total)
    peak = least + bisect.bisect_left(steps, True, key=lambda limit: network.flow(limit)[0])
    _, flow = network.flow(peak)
    return [
        [
            (names[column - network.first_holder], int(amount))
            for column, amount in zip(*_row(flow, 1 + group), strict=True)
            if amount > 0
        ]
        for group in range(len(groups))
    ]


def _row(flow: csr_array, row: int) -> tuple[Sequence[int], Sequence[int]]:
    here = slice(flow.indptr[row], flow.indptr[row + 1])
    return flow.indices[here], flow.data[here]


class _Network:
    """Source, groups, holders, sink: numbered in this order."""

    def __init__(
        self, groups: Sequence[Sequence[str]], demand: Sequence[int], names: Sequence[str]
    ) -> None:
        self.first_holder = 1 + len(groups)
        self._sink = self.first_holder + len(names)
        self._total = sum(demand)
        number = {name: self.first_holder + index for index, name in enumerate(names)}
        edges = [(0, 1 + group, units) for group, units in enumerate(demand)]
        edges += [
            (1 + group, number[name], units)
            for group, (holders, units) in enumerate(zip(groups, demand, strict=True))
            for name in holders
        ]
        edges += [(node, self._sink, 0) for node in number.values()]
        self._tails, self._heads, self._units = np.array(edges, dtype=np.int32).T
        self._num_holders = len(names)

    def flow(self, limit: int) -> tuple[bool, csr_array]:
        """Return whether everything flows where no holder sends more than `limit`, and how."""
        units = self._units.copy()
        units[-self._num_holders :] = limit
        shape = (self._sink + 1, self._sink + 1)
        capacities = csr_array((units, (self._tails, self._heads)), shape=shape)
        result = maximum_flow(capacities, 0, self._sink)
        return result.flow_value == self._total, result.flow
