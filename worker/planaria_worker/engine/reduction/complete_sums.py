"""Who adds what to a sum of which some have the whole already: a decision apart from the doing.

What holds every microbatch of a step once is the step's sum, whichever attempt it came from, and
stays true until the commit. It takes the place of the local sum, piece by piece from the start of
its layer, so that nobody needs memory for both. When another generation finishes the step, one of
those that have the most of a layer whole adds that for all of them, and the others nothing; behind
it everybody has its local sum, and adds that.

Nothing is lost with a holder: where no other has as much, all that are left have their local sums.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a layer's sum that travels whole: elements `start` to `end`, without the last.

    A layer is cut alike in every plan: what is whole of it, from its start, ends between two
    pieces.
    """

    layer: int
    start: int
    end: int

    @property
    def num_elements(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who adds the whole sum of a layer, and how much of it, from its start."""

    rank: int
    num_elements: int


NOBODY = Holder(rank=-1, num_elements=0)


class Part(Enum):
    """What a rank adds to the sum of a piece."""

    LOCAL = auto()
    """The sum of what it has computed."""
    WHOLE = auto()
    """The sum of what everybody has computed."""
    NOTHING = auto()
    """Another adds the whole."""


def find_holder(num_whole: Sequence[int]) -> Holder:
    """One that has the most of a layer whole, from how many elements each rank has."""
    most = max(num_whole)
    return Holder(rank=num_whole.index(most), num_elements=most) if most else NOBODY


def part_of(rank: int, piece: Piece, holder: Holder) -> Part:
    """What a rank adds to a piece of a layer with this holder."""
    if not 0 < piece.end <= holder.num_elements:
        return Part.LOCAL
    return Part.WHOLE if rank == holder.rank else Part.NOTHING


def cut_into_buckets(
    layers: Sequence[int], sizes: Mapping[int, int], limit: int
) -> Iterator[tuple[Piece, ...]]:
    """Pieces that travel together; of the highest layer first.

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
