"""Links between engines that failed, and which nodes to do without: pure functions of the graph.

An engine that reports accuses a link, not a node: either end may be at fault, or what is between
them. Nodes are the corners of the graph, and each failed link is an edge; to go on without a broken
link, one of its ends must be left out. The fewest nodes that cover all edges are the likeliest
cause as well: who accuses several peers that others reach is itself the cover of all its edges.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

MAX_EXACT = 12
"""Up to so many suspects all sets are tried."""

Edge = frozenset[str]
"""The nodes at the ends of a link: two, or one where both engines are on the same node."""


class LinkFailure(StrEnum):
    """The values of `planaria.api.worker.v1.LinkFailure`, without the prefix."""

    ENDED = "ENDED"
    REFUSED = "REFUSED"
    UNREACHABLE = "UNREACHABLE"
    STALLED = "STALLED"


class LinkDirection(StrEnum):
    """The values of `planaria.api.worker.v1.LinkDirection`, without the prefix."""

    OUTGOING = "OUTGOING"
    INCOMING = "INCOMING"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLink:
    """A link as one of its ends reported it."""

    engine_id: str
    """Who reported."""
    peer_engine_id: str
    failure: LinkFailure
    direction: LinkDirection
    since_seconds: float
    """On the monotonic clock."""

    @property
    def says_process_ended(self) -> bool:
        """Whether it looks from there as if the peer's process had ended."""
        return self.failure in (LinkFailure.ENDED, LinkFailure.REFUSED)

    @property
    def words(self) -> str:
        """Say what was reported."""
        what = {
            LinkFailure.ENDED: "its connection with {} ended",
            LinkFailure.REFUSED: "{} refuses its connection",
            LinkFailure.UNREACHABLE: "{} acknowledges nothing",
            LinkFailure.STALLED: "nothing it sends reaches {}",
        }[self.failure]
        return f"{self.engine_id} says that {what.format(self.peer_engine_id)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The nodes to do without."""

    nodes: tuple[str, ...]
    is_possible: bool
    """Whether the job has a plan without them."""
    reason: str


def looks_ended(
    engine_id: str,
    links: Collection[FailedLink],
    viewers: Collection[str],
    node_of: Mapping[str, str],
) -> bool:
    """Whether enough engines say that a process ended, though its agent has not said so.

    Two on different nodes do, if all such reports are best explained by its node; or one does where
    no other engine could see it. An engine that has reported such an end itself was alive: then it
    is a link that failed.

    Args:
        engine_id: whose process may have ended.
        links: those that failed.
        viewers: engines that have a connection to it.
        node_of: the node of each engine.
    """
    home = node_of[engine_id]
    if any(link.engine_id == engine_id and link.says_process_ended for link in links):
        return False
    accusers = {
        link.engine_id
        for link in links
        if link.peer_engine_id == engine_id and link.says_process_ended
    }
    accusing = {node_of[each] for each in accusers} - {home}
    others = {node_of[each] for each in viewers if each not in accusers} - {home} - accusing
    if len(accusing) > 1:
        ended = [each for each in links if each.says_process_ended]
        ends = [{each.engine_id, each.peer_engine_id} & node_of.keys() for each in ended]
        return _explains(home, {frozenset(node_of[e] for e in each) for each in ends if each})
    return bool(accusing) and not others


def _explains(node_id: str, edges: Collection[Edge]) -> bool:
    """Whether a node is in every one of the smallest sets that touch each failed link."""
    covers = list(_smallest_covers(edges, sorted({n for edge in edges for n in edge})))
    return all(node_id in cover for cover in covers)


def nodes_to_leave_out(
    edges: Collection[Edge],
    *,
    preferred: Sequence[str] = (),
    goes_without: Callable[[Collection[str]], bool] = lambda _nodes: True,
) -> Choice:
    """Name the fewest nodes without which no failed link is left.

    Exact up to twelve suspects; beyond that the node with most failed links goes first. Of equally
    many those that come first among `preferred` are left out, then by id.

    Args:
        edges: the failed links.
        preferred: nodes that are rather left out than others: joining ones, then those that
            failed lately.
        goes_without: whether the job has a plan without some nodes.

    Returns:
        the fewest nodes; of equally many, those that the job can do without. More are never left
        out in their place: they would be others than those at fault.
    """
    suspects = sorted({node_id for edge in edges for node_id in edge}, key=_rank(preferred))
    fewest: tuple[str, ...] = ()
    for cover in _smallest_covers(edges, suspects):
        fewest = fewest or cover
        if goes_without(cover):
            return Choice(nodes=cover, is_possible=True, reason=_reason(cover, edges))
    return Choice(nodes=fewest, is_possible=False, reason=_reason(fewest, edges))


def _rank(preferred: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    places = {node_id: place for place, node_id in enumerate(reversed(preferred), 1)}
    return lambda node_id: (-places.get(node_id, 0), node_id)


def _smallest_covers(edges: Collection[Edge], suspects: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """Yield the smallest sets that touch every edge: all of them, or one of too many suspects."""
    if len(suspects) > MAX_EXACT:
        yield from _greedy(edges, suspects)
        return
    for size in range(1, len(suspects) + 1):
        found = False
        for chosen in combinations(suspects, size):
            if all(not edge.isdisjoint(chosen) for edge in edges):
                found = True
                yield chosen
        if found:
            return


def _greedy(edges: Collection[Edge], suspects: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """One set that touches every edge, from those with most edges."""
    chosen: list[str] = []
    left = set(edges)
    while left:
        counts = Counter(node_id for edge in left for node_id in edge)
        chosen.append(max(suspects, key=lambda node_id: counts[node_id]))
        left = {edge for edge in left if chosen[-1] not in edge}
    yield tuple(chosen)


def _reason(nodes: Collection[str], edges: Collection[Edge]) -> str:
    """Say who cannot reach whom."""
    parts = []
    for node_id in nodes:
        peers = sorted({peer for edge in edges if node_id in edge for peer in edge} - {node_id})
        parts.append(f"{node_id} and {', '.join(peers) or 'itself'} cannot reach each other")
    return "; ".join(parts)
