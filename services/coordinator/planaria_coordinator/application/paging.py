"""Which page of a list is asked for."""

from dataclasses import dataclass, replace
from typing import Self

from planaria_common.errors import ErrorReason, PlanariaError

MAX_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """Which page of a list to read.

    Attributes:
        page_size: at most so many items; 0 for the list's default.
        page_token: `next_page_token` of the page before; empty for the first page.
    """

    page_size: int = 0
    page_token: str = ""

    def or_default(self, num_items: int) -> Self:
        """Return the request with a definite size: `num_items` for 0, at most MAX_PAGE_SIZE.

        Raises:
            PlanariaError: INVALID_ARGUMENT when the size is negative.
        """
        if self.page_size < 0:
            raise PlanariaError(
                ErrorReason.INVALID_ARGUMENT,
                f"page_size must be at least 0, not {self.page_size}",
                {"field": "page_size", "expected": "at least 0"},
            )
        return replace(self, page_size=min(self.page_size or num_items, MAX_PAGE_SIZE))

    def position(self) -> int:
        """Return the token as the whole number that it is in most lists; 0 for the first page.

        Raises:
            PlanariaError: INVALID_ARGUMENT when it is none.
        """
        token = self.page_token or "0"
        if not (token.isascii() and token.isdecimal() and len(token) <= 18):
            raise PlanariaError(
                ErrorReason.INVALID_ARGUMENT,
                f"page_token {token[:40]!r} is not one that this server gave: "
                "pass next_page_token of the page before",
                {"field": "page_token", "actual": token[:40]},
            )
        return int(token)
