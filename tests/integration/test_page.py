"""The built page in a real browser, against fixed answers."""

import pytest

from support.browser import build_page, needs_browser, walk_through_page

pytestmark = pytest.mark.integration


@needs_browser
def test_a_walk_through_the_page() -> None:
    """By keyboard to a job and back; both views accessible; old data is called old."""
    build_page()
    walk_through_page()
