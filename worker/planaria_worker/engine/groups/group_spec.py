"""What a group is for, which decides how it is connected."""

from dataclasses import dataclass
from enum import Enum


class GroupKind(Enum):
    """What a group carries."""

    ACTIVATIONS = "activations"
    """From each stage to the next; gradients go back the same way, unless they have a link of their
    own."""
    GRADIENTS = "gradients"
    """From each stage to the one before."""
    COMMIT_MESSAGES = "commit messages"
    """Votes to the next stage and decisions to the one before, in host memory on any device."""
    GRADIENT_SUM = "gradient sum"
    """All-reduce across the owners of a layer."""
    VOTE_SUM = "vote sum"
    """All-reduce across the last ranks: so small that hops count, and not bytes."""

    @property
    def is_link(self) -> bool:
        """Whether neighbours send each other messages; otherwise all members sum."""
        return self in (GroupKind.ACTIVATIONS, GroupKind.GRADIENTS, GroupKind.COMMIT_MESSAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group to build; a member's rank is its position in `members`."""

    name: str
    kind: GroupKind
    members: tuple[str, ...]

    def rank(self, engine_id: str) -> int:
        return self.members.index(engine_id)
