"""From whom each missing layer is copied, so that the busiest link carries the least.

Links are full duplex. What a node receives is given by its place, so only what each source sends is
to be balanced, and only down to the most that any node receives. Layers are handed out largest
first to the least loaded holder; then chains of moves (this copy to another holder, which passes
one on in turn) relieve the busiest source until none does. For layers of equal size that is the
optimum: the chains are augmenting paths. For others a second start, in the order of the layers, is
compared, so that it is never worse than handing them out as they come.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planaria_planner.inventory import Holders
from planaria_planner.profile import ModelProfile


class LayerCopy(NamedTuple):
    """One layer's state to be copied, or a piece of it from `first_byte` on.

    The source is empty when no node holds the layer. A named tuple and not a dataclass: plans made
    ahead make tens of thousands.
    """

    layer: int
    source: str
    destination: str
    num_bytes: int
    first_byte: int = 0


def choose_sources(
    profile: ModelProfile, missing: Mapping[str, Sequence[int]], holders: Holders
) -> tuple[LayerCopy, ...]:
    """Return a copy for each missing layer, by destination and layer.

    Args:
        profile: the model.
        missing: for each node the layers that it needs and lacks.
        holders: who has them.
    """
    sizes = [layer.state_bytes for layer in profile.layers]
    wanted = sorted((layer, node_id) for node_id, layers in missing.items() for layer in layers)
    needed = {layer: holders.get(layer, ()) for layer, _ in wanted}
    # Largest first, then those with the least choice; the sort keeps the order of equal ones.
    rank = {layer: (-sizes[layer], len(ids)) for layer, ids in needed.items()}
    most_received = max(
        (sum(sizes[layer] for layer in layers) for layers in missing.values()), default=0
    )
    chosen = _Loads(needed, sizes)
    chosen.hand_out(sorted(wanted, key=lambda want: rank[want[0]]), most_received)
    if chosen.peak > most_received and len({sizes[layer] for layer in needed}) > 1:
        other = _Loads(needed, sizes)
        other.hand_out(wanted, most_received)
        chosen = min(chosen, other, key=lambda loads: loads.peak)
    return tuple(
        LayerCopy(
            layer=layer,
            source=chosen.source_of.get((layer, node_id), ""),
            destination=node_id,
            num_bytes=sizes[layer],
        )
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


class _Loads:
    """Who sends what so far."""

    def __init__(self, holders: Holders, sizes: Sequence[int]) -> None:
        self._holders = holders
        self._bytes = sizes
        self._load: dict[str, int] = defaultdict(int)
        self._wants: dict[str, set[Want]] = defaultdict(set)
        # For layers wanted again their holders by load when last seen: loads only grow while
        # layers are handed out.
        self._queues: dict[int, list[tuple[int, str]]] = {}
        self.source_of: dict[Want, str] = {}

    @property
    def peak(self) -> int:
        """What the busiest source sends."""
        return max(self._load.values(), default=0)

    def hand_out(self, wants: Sequence[Want], enough: int) -> None:
        """Give every layer to a holder; sending at most `enough` is as good as sending less."""
        for want in wants:
            self.take(want)
        while self.relieve(enough):
            pass

    def take(self, want: Want) -> None:
        """Give a layer to its least loaded holder, if it has any."""
        holders = self._holders[want[0]]
        if not holders:
            return
        if want[0] not in self._queues:
            self._queues[want[0]] = []
            self._move(want, min(holders, key=self._load.__getitem__))
            return
        queue = self._queues[want[0]]
        if not queue:
            queue.extend((self._load[node_id], node_id) for node_id in holders)
            heapq.heapify(queue)
        while True:
            seen, node_id = queue[0]
            if seen == self._load[node_id]:
                self._move(want, node_id)
                break
            heapq.heapreplace(queue, (self._load[node_id], node_id))

    def relieve(self, enough: int) -> bool:
        """Find a chain of moves after which the busiest source, and nobody else, sends less.

        False when there is none, or when no source sends more than `enough`.
        """
        if not self._load:
            return False
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
        if want in self.source_of:
            before = self.source_of[want]
            self._load[before] -= self._bytes[want[0]]
            self._wants[before].remove(want)
        self.source_of[want] = source
        self._load[source] += self._bytes[want[0]]
        self._wants[source].add(want)
