"""What happened, for people and for watchers."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """An event that has no sequence number yet."""

    time: datetime
    type: str
    """snake_case, such as node_lost."""
    message: str
    """One sentence for people."""
    job_id: str = ""
    node_id: str = ""
    generation: int = 0
    """0 where there is none."""
    details: dict[str, Any] = field(default_factory=dict)
    """JSON values: those in the message and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(EventDraft):
    """Something that happened."""

    sequence: int
    """Position in the coordinator's order; grows by one."""
