"""Sizes of pages."""

from planaria_common.errors import ErrorReason, PlanariaError

MAX_PAGE_SIZE = 1000


def page_size_of(page_size: int, *, default: int) -> int:
    """Return the number of items to list: `default` for 0, never more than MAX_PAGE_SIZE.

    Raises:
        PlanariaError: INVALID_ARGUMENT when it is negative.
    """
    if page_size < 0:
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            f"page_size must be at least 0, not {page_size}",
            {"field": "page_size", "expected": "at least 0"},
        )
    return min(page_size or default, MAX_PAGE_SIZE)
