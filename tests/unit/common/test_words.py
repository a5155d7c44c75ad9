"""Numbers in sentences for people."""

import pytest

from planaria_common.words import counted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (11, "11 nodes")]
)
def test_one_is_singular(number: int, words: str) -> None:
    assert counted(number, "node") == words
