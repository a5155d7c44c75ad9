"""What an engine says of a link that failed."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

_ENDS = (errno.ECONNRESET, errno.EPIPE)


class LinkFailureKind(StrEnum):
    """The values of `planaria.api.worker.v1.LinkFailure`, without the prefix."""

    ENDED = "ENDED"
    """The connection ended: mostly the peer's process has."""
    REFUSED = "REFUSED"
    """Nobody listens at the address."""
    UNREACHABLE = "UNREACHABLE"
    """The peer's machine acknowledges nothing; the kernel does so for a stopped process."""
    STALLED = "STALLED"
    """The same for so long that the link is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFailure:
    """A link that failed, as one of its ends saw it."""

    peer_engine_id: str
    kind: LinkFailureKind
    is_outgoing: bool
    """Whether this engine opened the connection; otherwise its peer did."""
    detect_time: datetime

    @property
    def is_final(self) -> bool:
        """Whether the link is given up: nothing will come over it any more."""
        return self.kind is not LinkFailureKind.UNREACHABLE


OnLinkFailure = Callable[[LinkFailure], None]
"""Called with a link that failed, from any thread."""


def kind_of(code: int | None) -> LinkFailureKind:
    """Return what an error of a connection says of its link."""
    if code == errno.ECONNREFUSED:
        return LinkFailureKind.REFUSED
    if code is None or code in _ENDS:
        return LinkFailureKind.ENDED
    return LinkFailureKind.UNREACHABLE
