"""What some have whole of a step in flight is in its sum once, and nobody needs it twice."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria_worker.engine.numerics.accumulate import Piece
from planaria_worker.engine.reduction.complete_sums import (
    NOBODY,
    Holder,
    Part,
    cut_into_buckets,
    find_holder,
    part_of,
)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_every_piece_is_added_complete_by_one_or_locally_by_all(num_complete: list[int]) -> None:
    """Whoever has a piece whole has its own part of it no more."""
    holder = find_holder(num_complete)
    for start in range(4):
        piece = Piece(layer=7, start=start, end=start + 1)
        parts = [part_of(rank, piece, holder) for rank in range(len(num_complete))]
        has_whole = [own >= piece.end for own in num_complete]
        if any(has_whole):
            assert has_whole[parts.index(Part.COMPLETE)]
            assert sorted(map(parts.count, (Part.COMPLETE, Part.LOCAL))) == [0, 1]
        else:
            assert set(parts) == {Part.LOCAL}


def test_of_those_that_have_as_much_the_first_adds_it() -> None:
    assert find_holder([1, 3, 3]) == Holder(rank=1, num_elements=3)
    assert find_holder([0, 0]) == NOBODY


def test_a_layer_without_parameters_has_no_owner() -> None:
    (bucket,) = cut_into_buckets([2], {2: 0}, 4)
    assert bucket == (Piece(layer=2, start=0, end=0),)
    assert part_of(0, bucket[0], NOBODY) is Part.LOCAL


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ({0: 2, 1: 2, 2: 2}, [[(2, 0, 2), (1, 0, 2)], [(0, 0, 2)]]),
        ({0: 9}, [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 9)]]),
        ({0: 1, 1: 6, 2: 1}, [[(2, 0, 1)], [(1, 0, 4)], [(1, 4, 6), (0, 0, 1)]]),
    ],
)
def test_small_layers_travel_together_and_large_ones_in_pieces(
    sizes: Mapping[int, int], buckets: list[list[tuple[int, int, int]]]
) -> None:
    cut = list(cut_into_buckets(sorted(sizes), sizes, 4))
    assert [[(p.layer, p.start, p.end) for p in bucket] for bucket in cut] == buckets


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 30), min_size=1), st.integers(1, 9))
def test_no_bucket_is_larger_than_the_limit_and_no_element_is_left_out(
    sizes: dict[int, int], limit: int
) -> None:
    """Where a layer is cut depends on its size, and not on the others."""
    buckets = list(cut_into_buckets(sorted(sizes), sizes, limit))
    assert all(sum(piece.num_elements for piece in bucket) <= limit for bucket in buckets)
    pieces = [piece for bucket in buckets for piece in bucket]
    assert list(dict.fromkeys(piece.layer for piece in pieces)) == sorted(sizes, reverse=True)
    for layer, size in sizes.items():
        own = [piece for piece in pieces if piece.layer == layer]
        assert own == [piece for (piece,) in cut_into_buckets([layer], sizes, limit)]
        assert [element for p in own for element in range(p.start, p.end)] == list(range(size))
