"""What each owner adds to a sum that some owners have complete already: a pure decision.

A sum that holds every microbatch of a step once is the step's sum, whichever attempt it came from,
and stays valid until the commit. It replaces the local sum, piece by piece from the start of its
layer, so that no engine needs memory for both. When another generation finishes the step, one of
the owners that have the most of a layer complete adds that part for all of them, and the others add
nothing; for the rest of the layer each owner adds its local sum.

No gradient is lost with a holder: every remaining owner still has its local sum of what no other
owner has complete.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from planaria_worker.engine.numerics.accumulate import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The rank that adds the complete sum of a layer, and how much of it, from its start."""

    rank: int
    num_elements: int


NOBODY = Holder(rank=-1, num_elements=0)


class Part(Enum):
    """What a rank adds to a piece."""

    LOCAL = auto()
    """The sum of what it has computed."""
    COMPLETE = auto()
    """The sum of what all owners have computed."""
    NOTHING = auto()
    """Another rank adds the complete sum."""


def find_holder(num_complete: Sequence[int]) -> Holder:
    """Return the rank with the most complete elements of a layer."""
    most = max(num_complete)
    return Holder(rank=num_complete.index(most), num_elements=most) if most else NOBODY


def part_of(rank: int, piece: Piece, holder: Holder) -> Part:
    """Return what a rank adds to a piece of a layer with this holder."""
    if not 0 < piece.end <= holder.num_elements:
        return Part.LOCAL
    return Part.COMPLETE if rank == holder.rank else Part.NOTHING


def cut_into_buckets(
    layers: Sequence[int], sizes: Mapping[int, int], limit: int
) -> Iterator[tuple[Piece, ...]]:
    """Yield the pieces that are reduced together; those of the highest layer first.

    Args:
        layers: consecutive, ascending.
        sizes: elements of each layer.
        limit: elements of a bucket at most; the same in all plans, so that layers are cut alike.
    """
    bucket: list[Piece] = []
    for piece in _pieces(layers, sizes, limit):
        if bucket and sum(each.num_elements for each in (*bucket, piece)) > limit:
            yield tuple(bucket)
            bucket = []
        bucket.append(piece)
    yield tuple(bucket)


def _pieces(layers: Sequence[int], sizes: Mapping[int, int], limit: int) -> Iterator[Piece]:
    for layer in reversed(layers):
        size = sizes[layer]
        for start in range(0, max(size, 1), limit):  # a layer without parameters is a piece as well
            yield Piece(layer=layer, start=start, end=min(start + limit, size))
