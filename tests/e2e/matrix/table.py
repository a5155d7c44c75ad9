"""The failure matrix: every place where an engine can fail x how it fails x how many fail.

A new place is one line in PLACES, with the failpoint that the engine passes there.
"""

import itertools
import zlib
from dataclasses import dataclass
from enum import Enum
from random import Random


class During(Enum):
    """What must be under way for an engine to pass a place."""

    STEP = "step"
    CHANGE = "change"
    """A change of the plan: a node joins, or the job recovers from the loss of an engine."""
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in the engine."""

    name: str
    at: str
    """The failpoint."""
    during: During = During.STEP
    joiner_only: bool = False
    """Only the node that joins fails there."""
    is_staged: bool = False
    """It is passed after staging began, while training continues."""
    is_unstaged: bool = False
    """It is passed only when staging has failed: then everybody is parked for the change."""
    is_lone: bool = False
    """Two cannot fail there: nobody else passes it, or only once."""
    is_once: bool = False
    """All pass it at the same moment, and not again when the first has failed."""
    has_microbatch: bool = False


PLACES = (
    Place(name="forward", at="forward", has_microbatch=True),
    Place(name="backward", at="backward", has_microbatch=True),
    Place(name="waiting-for-a-neighbour", at="wait_peer"),
    Place(name="in-all-reduce", at="reduce"),
    Place(name="before-the-exchange", at="before_exchange"),
    Place(name="after-the-exchange", at="after_exchange"),
    Place(name="before-the-update", at="before_update"),
    Place(name="rebuilding", at="rebuild", during=During.CHANGE),
    Place(name="copying", at="copy", during=During.CHANGE, is_unstaged=True, is_lone=True),
    Place(
        name="serving-a-copy", at="serve_copy", during=During.CHANGE, is_unstaged=True, is_lone=True
    ),
    Place(name="staging", at="stage", during=During.CHANGE, is_once=True),
    Place(name="following", at="follow", during=During.CHANGE, is_staged=True, is_lone=True),
    Place(name="serving-a-follower", at="serve_follow", during=During.CHANGE, is_staged=True),
    Place(name="switching", at="switch", during=During.CHANGE, is_staged=True),
    Place(name="checkpointing", at="checkpoint", during=During.CHECKPOINT),
    Place(
        name="joining",
        at="rebuild",
        during=During.CHANGE,
        joiner_only=True,
        is_staged=True,
        is_lone=True,
    ),
)


class Action(Enum):
    """How an engine or its node fails."""

    KILL = "kill"
    """SIGKILL to the engine."""
    KILL_NODE = "kill-node"
    """SIGKILL to the engine and its agent."""
    STOP = "stop"
    """SIGSTOP to the engine; its agent lives."""
    RAISE = "exception"
    SEGFAULT = "segmentation-fault"
    HANG = "hung-computation"
    """The thread hangs, and the engine goes on to answer and to beat."""
    CUT = "cut-network"
    """The node's network carries nothing until the node is declared lost; then it heals."""
    RETURN = "return-after-fencing"
    """Engine and agent are stopped until the node is declared lost; then they go on."""
    SILENT = "silent-agent"
    """The agent is stopped until the coordinator says that it is silent; its engine goes on."""
    CUT_PEERS = "cut-from-peers"
    """The node's network carries only what is from or to the coordinator, and drops or resets the
    rest, until the job has done without the node."""

    @property
    def failpoint(self) -> str:
        """What the failpoint does; the rest is done from outside."""
        return _FAILPOINTS[self]

    @property
    def is_of_node(self) -> bool:
        """Whether the whole node fails, its agent included."""
        return self in (Action.KILL_NODE, Action.CUT, Action.RETURN)

    @property
    def is_quick(self) -> bool:
        """Whether no deadline must pass before it is found, and no agent is started again."""
        return self in (Action.KILL, Action.RAISE, Action.SEGFAULT)

    def loses(self, place: Place) -> bool:
        """Whether whoever fails like this at a place is lost.

        What writes checkpoints is a thread of its own, without which an engine trains on. Who is
        silent is lost only if the job must wait for it, as a change does.
        """
        if self is Action.SILENT:
            return False
        in_background = place.during is During.CHECKPOINT
        return not (in_background and self in (Action.RAISE, Action.HANG))

    @property
    def returns(self) -> bool:
        """Whether the node comes back by itself."""
        return self in (Action.CUT, Action.RETURN, Action.SILENT, Action.CUT_PEERS)

    @property
    def needs_network(self) -> bool:
        """Whether it needs network namespaces."""
        return self in (Action.CUT, Action.CUT_PEERS)


_FAILPOINTS = {
    Action.KILL: "kill",
    Action.KILL_NODE: "hold",
    Action.STOP: "stop",
    Action.RAISE: "raise",
    Action.SEGFAULT: "segfault",
    Action.HANG: "hang",
    Action.CUT: "hold",
    Action.RETURN: "stop",
    Action.SILENT: "hold",
    Action.CUT_PEERS: "hold",
}


class Count(Enum):
    """How many fail."""

    ONE = "one"
    TWO = "two-at-once"
    SECOND = "second-during-recovery"
    """An engine was killed a moment before; this one fails in the recovery."""

    @property
    def num_at_once(self) -> int:
        """How many fail before anybody can do anything about it."""
        return 2 if self is Count.TWO else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the matrix."""

    place: Place
    action: Action
    count: Count

    def __str__(self) -> str:
        return f"{self.place.name}-{self.action.value}-{self.count.value}"

    @property
    def leaves_pipelines_whole(self) -> bool:
        """Whether somebody is lost while pipelines train that lose nobody by it.

        Where staging has failed, all are parked; after a switch, pipelines are just changing.
        What raises or hangs in the background fails or delays the change, and nobody is lost.
        """
        if self.place.during is not During.CHANGE:
            return True
        is_beside = self.action in (Action.RAISE, Action.HANG, Action.SILENT)
        return not (self.place.is_unstaged or self.place.at == "switch" or is_beside)

    def random(self, seed: int) -> Random:
        """Return what the case's choices are made with."""
        return Random(zlib.crc32(f"{self}/{seed}".encode()))


def _is_lone(place: Place, action: Action) -> bool:
    """Whether two cannot fail like this.

    An exception in a source costs the follower a millisecond: it has turned to another before
    that one could be spoilt, too.
    """
    return place.is_lone or (place.at == "serve_follow" and action is Action.RAISE)


CASES = tuple(
    Case(place=place, action=action, count=count)
    for place, action, count in itertools.product(PLACES, Action, Count)
    if not (count is Count.TWO and _is_lone(place, action))
)
