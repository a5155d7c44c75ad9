"""Nodes that a job does without for a while, because links to them failed.

When the pause is over a node may join again; it is probed before it takes part. Each further time
the pause is twice as long, until the node has served for ten pauses.
"""

from collections.abc import Collection
from dataclasses import replace

from planaria_coordinator.domain.job.job_run import Cordon, JobRun
from planaria_coordinator.domain.job.turn import Turn

LONGEST_PAUSE_SECONDS = 3600.0
_FORGIVEN_AFTER_PAUSES = 10.0


def cordon(turn: Turn, node_id: str, reason: str, peers: Collection[str]) -> None:
    """Do without a node for a while; the caller stops its engines."""
    _lift(turn, _excused(turn.run, {*turn.run.left_out, node_id}))
    now, before = turn.now.seconds, turn.run.cordoned.get(node_id)
    pause_seconds = turn.limits.cordon_seconds
    if before is not None:
        forgiven = before.end_seconds + _FORGIVEN_AFTER_PAUSES * before.pause_seconds
        if now < forgiven:
            pause_seconds = min(2 * before.pause_seconds, LONGEST_PAUSE_SECONDS)
    made = Cordon(
        reason=reason,
        end_seconds=now + pause_seconds,
        pause_seconds=pause_seconds,
        since_time=turn.now.time,
        peers=tuple(sorted(peers)),
    )
    turn.change(cordoned={**turn.run.cordoned, node_id: made})
    turn.emit(
        "node_left_out",
        f"the job does without {node_id} for {pause_seconds:.0f} s: {reason}",
        node_id=node_id,
        pause_seconds=pause_seconds,
    )


def fault_found(turn: Turn, node_id: str) -> None:
    """Let a node join again, since it is known what ailed it, and those left out because of it."""
    _lift(turn, _excused(turn.run, {node_id}) | ({node_id} & turn.run.left_out.keys()))


def _excused(run: JobRun, at_fault: Collection[str]) -> set[str]:
    """Return nodes that are left out and that only those at fault could not reach."""
    out = ((node_id, run.cordoned[node_id]) for node_id in run.left_out)
    return {node_id for node_id, c in out if c.peers and set(c.peers).issubset(at_fault)}


def cordons_overdue(turn: Turn) -> None:
    """Let nodes join again whose pause is over."""
    over = {n for n, c in turn.run.cordoned.items() if c.end_seconds <= turn.now.seconds}
    _lift(turn, over & turn.run.left_out.keys())


def lift_cordons(turn: Turn) -> None:
    """Let all nodes join again: the job cannot go on without them."""
    _lift(turn, turn.run.left_out.keys())


def restart_cordons(turn: Turn) -> None:
    """Count from now on: the coordinator has started again, with another clock."""
    now = turn.now.seconds
    cordoned = {
        node_id: replace(each, end_seconds=now if each.is_over else now + each.pause_seconds)
        for node_id, each in turn.run.cordoned.items()
    }
    turn.note_run(cordoned=cordoned)


def _lift(turn: Turn, node_ids: Collection[str]) -> None:
    if node_ids:
        lifted = {n: replace(turn.run.cordoned[n], is_over=True) for n in node_ids}
        turn.change(cordoned={**turn.run.cordoned, **lifted})
        turn.because(f"{', '.join(sorted(node_ids))} may join again")
