"""Links between engines that failed, and which nodes to do without: pure functions of the graph.

An engine that reports accuses a link, not a node: either end may be at fault, or what is between
them. Nodes are the corners of the graph, and each failed link is an edge; to go on without a broken
link, one of its ends must be left out. The fewest nodes that cover all edges are the likeliest
cause as well: who accuses several peers that others reach is itself the cover of all its edges.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from planaria_coordinator.domain.engines.engine import node_of

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
    def ends(self) -> tuple[str, str]:
        """The engines."""
        return self.engine_id, self.peer_engine_id

    @property
    def says_process_ended(self) -> bool:
        """Whether it looks from there as if the peer's process had ended."""
        return self.failure in (LinkFailure.ENDED, LinkFailure.REFUSED)

    @property
    def is_final(self) -> bool:
        """Whether the reporting engine has given the link up."""
        return self.failure is not LinkFailure.UNREACHABLE

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
    engine_id: str, links: Collection[FailedLink], earlier: Collection[Edge] = ()
) -> bool:
    """Whether enough engines say that a process ended, though its agent has not said so.

    Its node must be among the fewest that explain all that is said, whichever of several such sets
    one takes: else it may be those who say it that are at fault, even if they are two. An engine
    that has reported such an end itself was alive: then it is a link that failed.

    Args:
        engine_id: whose process may have ended.
        links: those that failed.
        earlier: those that failed lately, and nobody knows whose fault it was.
    """
    home = node_of(engine_id)
    ends = [link for link in links if link.says_process_ended]
    if any(link.engine_id == engine_id for link in ends):
        return False
    accusing = {node_of(link.engine_id) for link in ends if link.peer_engine_id == engine_id}
    if len(accusing - {home}) < 2:
        return False
    edges = {each for each in map(edge_of, ends) if len(each) > 1}
    return _is_in_all_smallest(home, [*edges, *_sharing_an_end(earlier, edges)])


def edge_of(link: FailedLink) -> Edge:
    """Return the nodes at the ends of a link."""
    return frozenset(map(node_of, link.ends))


def _sharing_an_end(earlier: Iterable[Edge], edges: Iterable[Edge]) -> list[Edge]:
    nodes = frozenset(node_id for edge in edges for node_id in edge)
    return [edge for edge in earlier if not edge.isdisjoint(nodes)]


def _is_in_all_smallest(node_id: str, edges: Collection[Edge]) -> bool:
    """Whether every smallest set of nodes that touches all edges has a node."""
    suspects = sorted({each for edge in edges for each in edge})
    if len(suspects) > MAX_EXACT:  # a set without it has all its peers
        (found,) = _greedy(edges, suspects)
        return len({each for edge in edges if node_id in edge for each in edge}) - 1 > len(found)
    return all(node_id in cover for cover in _smallest_covers(edges, suspects))


def nodes_to_leave_out(
    edges: Collection[Edge],
    *,
    earlier: Collection[Edge] = (),
    preferred: Sequence[str] = (),
    goes_without: Callable[[Collection[str]], bool] = lambda _nodes: True,
) -> Choice:
    """Name the fewest nodes without which no failed link is left.

    Exact up to twelve suspects; beyond that the node with most failed links goes first. Of equally
    many those that come first among `preferred` are left out, then by id.

    Args:
        edges: the failed links.
        earlier: those that failed lately: they show which end it is, and alone are no reason to
            leave anybody out.
        preferred: nodes that are rather left out than others, the first one most of all.
        goes_without: whether the job has a plan without some nodes.

    Returns:
        the fewest nodes; of equally many, those that the job can do without. More are never left
        out in their place: they would be others than those at fault.
    """
    known = [*edges, *_sharing_an_end(earlier, edges)]
    suspects = sorted({node_id for edge in known for node_id in edge}, key=_rank(preferred))
    fewest: tuple[str, ...] = ()
    for cover in _smallest_covers(known, suspects):
        nodes = tuple(n for n in cover if any(n in edge for edge in edges))
        if goes_without(nodes):
            return Choice(nodes=nodes, is_possible=True, reason=_reason(nodes, edges))
        fewest = fewest or nodes
    return Choice(nodes=fewest, is_possible=False, reason=_reason(fewest, edges))


def _rank(preferred: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    places = {node_id: place for place, node_id in enumerate(reversed(preferred), 1)}
    return lambda node_id: (-places.get(node_id, 0), node_id)


def _smallest_covers(edges: Collection[Edge], suspects: Sequence[str]) -> Iterator[tuple[str, ...]]:
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


def _greedy(edges: Collection[Edge], suspects: Sequence[str]) -> Iterator[tuple[str, ...]]:
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
