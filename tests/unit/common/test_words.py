"""Numbers in sentences for people."""

import pytest

from planaria_common.words import bytes_in_words, counted, counted_of


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (11, "11 nodes")]
)
def test_one_is_singular(number: int, words: str) -> None:
    assert counted(number, "node") == words


def test_the_verb_goes_with_the_part() -> None:
    parts = [counted_of(number, 4, "node") for number in (0, 1, 2)]
    assert parts == ["0 of 4 nodes are", "1 of 4 nodes is", "2 of 4 nodes are"]
    assert counted_of(0, 1, "node") == "0 of 1 node are"


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (999, "999 B"), (8_474_112, "8.47 MB"), (2e15, "2e+03 TB")]
)
def test_bytes_have_a_unit_that_suits_them(size: float, words: str) -> None:
    assert bytes_in_words(size) == words
