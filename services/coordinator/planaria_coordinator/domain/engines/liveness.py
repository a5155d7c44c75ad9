"""What is lost: pure functions of what was seen, and when."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What has been seen of a node; times are seconds on the monotonic clock."""

    last_seen_seconds: float
    """The last heartbeat, or the moment from which on one is expected."""
    session_open: bool
    session_ended: bool
    """It was open, and was seen to end; unlike one that has not been opened since our start."""
    holds_engines: bool
    peer_lost: bool
    """An engine elsewhere saw the process of one of its engines end, and nobody has explained it
    since."""


def why_node_lost(
    now_seconds: float, seen: Liveness, *, node_deadline_seconds: float, agent_lease_seconds: float
) -> str | None:
    """Return in words why a node is lost, or None while it is not.

    A session that ended may be a crash of the agent alone: its engines go on for the agent's
    lease, and a restarted agent adopts them. One that has not been opened since our own start may
    be an agent that is about to try again: its engines go on as well, unless one was seen to end.
    Silence on an open session is a dead machine or a cut network.
    """
    silence_seconds = now_seconds - seen.last_seen_seconds
    if seen.session_ended and seen.peer_lost:
        return "its session and an engine's process ended"
    deadline_seconds = node_deadline_seconds
    if seen.holds_engines and not seen.session_open and not seen.peer_lost:
        deadline_seconds = max(node_deadline_seconds, agent_lease_seconds)
    if silence_seconds > deadline_seconds:
        return f"no heartbeat for {silence_seconds:.1f} s"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the engines of a job were when one of them last advanced."""

    counts: Mapping[str, int]
    since_seconds: float


def observe_progress(
    now_seconds: float, seen: Progress | None, counts: Mapping[str, int]
) -> Progress:
    """Return what is known after another look at the engines' progress counters."""
    if seen is None or dict(seen.counts) != dict(counts):
        return Progress(counts=dict(counts), since_seconds=now_seconds)
    return seen


def progress_deadline_seconds(
    action_seconds: float, step_seconds: float, *, least_seconds: float
) -> float:
    """Return how long a job may make no progress: ten usual actions, and never less than a step.

    One engine that hangs makes all others wait for it, so nobody advances; while somebody does,
    nothing hangs.
    """
    return max(least_seconds, 10.0 * action_seconds, 2.0 * step_seconds)
