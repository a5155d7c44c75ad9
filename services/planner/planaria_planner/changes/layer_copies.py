"""From whom each missing layer is copied, so that the busiest link carries the least.

Links are full duplex. What a node receives is given by its place, so only what each source sends is
to be balanced, and only down to the most that any node receives. Layers are handed out largest
first to the least loaded holder; then chains of moves (this copy to another holder, which passes
one on in turn) relieve the busiest source until none does. For layers of equal size that is the
optimum: the chains are augmenting paths. For others a second start, in the order of the layers, is
compared, so that it is never worse than handing them out as they come.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planaria_planner.changes.inventory import Inventory
from planaria_planner.compiled import compiled
from planaria_planner.templates.cost_tables import Int64Array


class LayerCopy(NamedTuple):
    """One layer's state to be copied.

    The source is empty when no node holds the layer. A named tuple and not a dataclass: plans made
    ahead make tens of thousands.
    """

    layer: int
    source: str
    destination: str
    num_bytes: int


def choose_sources(
    missing: Mapping[str, Sequence[int]], inventory: Inventory
) -> tuple[LayerCopy, ...]:
    """Return a copy for each missing layer, by destination and layer.

    Args:
        missing: for each node the layers that it needs and lacks.
        inventory: who has them.
    """
    sizes = inventory.sizes
    wanted = sorted((layer, node_id) for node_id, layers in missing.items() for layer in layers)
    # Largest first, then those with the least choice; the sort keeps the order of equal ones.
    rank = {layer: (-sizes[layer], inventory.num_holders[layer]) for layer, _ in wanted}
    most_received = max(
        (sum(sizes[layer] for layer in layers) for layers in missing.values()), default=0
    )
    largest_first = sorted(wanted, key=lambda want: rank[want[0]])
    source_of, peak = _hand_out(largest_first, inventory, most_received)
    if peak > most_received and len({sizes[layer] for layer in rank}) > 1:
        other, other_peak = _hand_out(wanted, inventory, most_received)
        source_of = other if other_peak < peak else source_of
    return tuple(
        LayerCopy(layer, source_of.get((layer, node_id), ""), node_id, sizes[layer])
        for layer, node_id in sorted(wanted, key=lambda want: (want[1], want[0]))
    )


def busiest_bytes(copies: Sequence[LayerCopy]) -> int:
    """Return the bytes over the busiest direction of any node's link."""
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    for copy in copies:
        sent[copy.source] = sent.get(copy.source, 0) + copy.num_bytes
        received[copy.destination] = received.get(copy.destination, 0) + copy.num_bytes
    return max(max(sent.values(), default=0), max(received.values(), default=0))


Want = tuple[int, str]
"""A layer and the node that needs it."""


Sources = dict[Want, str]
"""Who sends each layer that somebody holds."""


def _hand_out(wants: Sequence[Want], inventory: Inventory, enough: int) -> tuple[Sources, int]:
    """Give every layer to a holder; sending at most `enough` is as good as sending less.

    Returns who sends what, and the bytes that the busiest source sends.
    """
    layers = np.array([layer for layer, _ in wants], dtype=np.int64)
    loads = np.zeros(len(inventory.names), dtype=np.int64)
    rows = _least_loaded(
        layers,
        np.array(inventory.sizes, dtype=np.int64),
        *inventory.holder_ranges,
        inventory.present,
        loads,
    )
    names = inventory.names
    source_of = {
        want: names[row] for want, row in zip(wants, rows.tolist(), strict=True) if row >= 0
    }
    peak = int(loads.max(initial=0))
    if peak <= enough:
        return source_of, peak
    relief = _Relief(source_of, inventory)
    while relief.step(enough):
        pass
    return relief.source_of, relief.peak


@compiled
def _least_loaded(
    layers: Int64Array,
    sizes: Int64Array,
    first_holder: Int64Array,
    holders: Int64Array,
    present: NDArray[np.bool_],
    loads: Int64Array,
) -> Int64Array:
    """Give one layer after another to its least loaded holder, the first of equal ones.

    Returns the row of each one's holder, -1 where there is none; adds up `loads`.
    """
    rows = np.full(len(layers), -1, dtype=np.int64)
    for i in range(len(layers)):
        for j in range(first_holder[layers[i]], first_holder[layers[i] + 1]):
            row = holders[j]
            if present[row] and (rows[i] < 0 or loads[row] < loads[rows[i]]):
                rows[i] = row
        if rows[i] >= 0:
            loads[rows[i]] += sizes[layers[i]]
    return rows


class _Relief:
    """Moves layers on to other holders until nobody can send less than the busiest."""

    def __init__(self, source_of: Sources, inventory: Inventory) -> None:
        self.source_of = source_of
        self._bytes = inventory.sizes
        self._holders = {layer: inventory.holders_of(layer) for layer, _ in source_of}
        self._load: dict[str, int] = defaultdict(int)
        self._wants: dict[str, set[Want]] = defaultdict(set)
        for want, source in source_of.items():
            self._load[source] += self._bytes[want[0]]
            self._wants[source].add(want)

    @property
    def peak(self) -> int:
        """What the busiest source sends."""
        return max(self._load.values(), default=0)

    def step(self, enough: int) -> bool:
        """Find a chain of moves after which the busiest source, and nobody else, sends less.

        False when there is none, or when no source sends more than `enough`.
        """
        busiest = max(self._load, key=lambda node: (self._load[node], node))
        peak = self._load[busiest]
        if peak <= enough:
            return False
        # Breadth first: from[node] is the copy that would come to it, and who sends it now.
        came: dict[str, tuple[Want, str]] = {}
        queue = deque([busiest])
        while queue:
            node = queue.popleft()
            arriving = self._bytes[came[node][0][0]] if node in came else 0
            for want in sorted(self._wants[node]):
                size = self._bytes[want[0]]
                if node != busiest and self._load[node] + arriving - size >= peak:
                    continue
                for other in self._holders[want[0]]:
                    if other == busiest or other in came:
                        continue
                    came[other] = (want, node)
                    if self._load[other] + size < peak:
                        self._apply(other, busiest, came)
                        return True
                    queue.append(other)
        return False

    def _apply(self, node: str, busiest: str, came: Mapping[str, tuple[Want, str]]) -> None:
        while node != busiest:
            want, sender = came[node]
            self._move(want, node)
            node = sender

    def _move(self, want: Want, source: str) -> None:
        before = self.source_of[want]
        self._load[before] -= self._bytes[want[0]]
        self._wants[before].remove(want)
        self.source_of[want] = source
        self._load[source] += self._bytes[want[0]]
        self._wants[source].add(want)
