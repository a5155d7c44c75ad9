"""Nodes that a job does without for a while, because links to them failed.

When the pause is over a node may join again; it is probed before it takes part. Each further time
the pause is twice as long, until the node has served for ten pauses. Whom others saw end has no
pause at first.
"""

from collections.abc import Collection
from dataclasses import replace

from planaria_coordinator.domain.job.job_run import Cordon, JobRun
from planaria_coordinator.domain.job.turn import Turn

LONGEST_PAUSE_SECONDS = 3600.0
_FORGIVEN_AFTER_PAUSES = 10.0


def cordon(
    turn: Turn,
    node_id: str,
    reason: str,
    peers: Collection[str],
    *,
    first_pause_seconds: float | None = None,
) -> None:
    """Do without a node for a while; the caller stops its engines."""
    _clear(turn, _excused(turn.run, {*turn.run.left_out, node_id}))
    now, usual_seconds = turn.now.seconds, turn.limits.cordon_seconds
    before = turn.run.cordoned.get(node_id)
    pause_seconds = usual_seconds if first_pause_seconds is None else first_pause_seconds
    if before is not None:
        served_seconds = _FORGIVEN_AFTER_PAUSES * max(before.pause_seconds, usual_seconds)
        if now < before.end_seconds + served_seconds:
            pause_seconds = max(2 * before.pause_seconds, usual_seconds)
    pause_seconds = min(pause_seconds, LONGEST_PAUSE_SECONDS)
    made = Cordon(
        reason=reason,
        end_seconds=now + pause_seconds,
        pause_seconds=pause_seconds,
        since_time=turn.now.time,
        peers=tuple(sorted(peers)),
        is_over=not pause_seconds,
    )
    turn.change(cordoned={**turn.run.cordoned, node_id: made})
    if made.is_over:
        return
    turn.emit(
        "node_left_out",
        f"the job does without {node_id} for {pause_seconds:.0f} s: {reason}",
        node_id=node_id,
        pause_seconds=pause_seconds,
    )


def suspects(turn: Turn) -> dict[str, Cordon]:
    """Return the nodes that links have failed with lately, and nobody knows whose fault it is."""
    latest = turn.now.seconds - turn.limits.cordon_seconds
    return {
        node_id: c
        for node_id, c in turn.run.cordoned.items()
        if c.peers and (not c.is_over or c.end_seconds > latest)
    }


def fault_found(turn: Turn, node_id: str) -> None:
    """Lift what followed from links that failed with a node: it was the node, gone or unreachable.

    If links fail with it again, its earlier pauses count.
    """
    run = turn.run
    _clear(turn, _excused(run, {node_id}) | ({node_id} & run.cordoned.keys()))


def forget_cordon(turn: Turn, node_id: str) -> None:
    """Lift it, and forget it: no link was at fault, or the machine is gone."""
    fault_found(turn, node_id)
    if node_id in turn.run.cordoned:
        turn.change(cordoned={n: c for n, c in turn.run.cordoned.items() if n != node_id})


def _excused(run: JobRun, at_fault: Collection[str]) -> set[str]:
    """Return nodes that only those at fault could not reach."""
    return {n for n, c in run.cordoned.items() if c.peers and set(c.peers).issubset(at_fault)}


def _clear(turn: Turn, node_ids: set[str]) -> None:
    """It was not the links of these nodes."""
    _lift(turn, node_ids & turn.run.left_out.keys())
    if node_ids:
        cleared = {n: replace(turn.run.cordoned[n], peers=()) for n in node_ids}
        turn.change(cordoned={**turn.run.cordoned, **cleared})


def cordons_overdue(turn: Turn) -> None:
    """Let nodes join again whose pause is over."""
    over = {n for n, c in turn.run.cordoned.items() if c.end_seconds <= turn.now.seconds}
    _lift(turn, over & turn.run.left_out.keys())


def lift_cordons(turn: Turn) -> None:
    """Let all nodes join again: the job cannot go on without them."""
    _lift(turn, turn.run.left_out.keys())


def restart_cordons(turn: Turn) -> None:
    """Count on by the clock of another coordinator."""
    now = turn.now

    def go_on(cordoned: Cordon) -> Cordon:
        passed_seconds = max(0.0, (now.time - cordoned.since_time).total_seconds())
        left_seconds = cordoned.pause_seconds - passed_seconds
        if cordoned.is_over:  # when it was lifted nobody knows any more
            left_seconds = min(left_seconds, 0.0)
        return replace(cordoned, end_seconds=now.seconds + left_seconds)

    turn.note_run(cordoned={n: go_on(each) for n, each in turn.run.cordoned.items()})


def _lift(turn: Turn, node_ids: Collection[str]) -> None:
    if node_ids:
        before, now = turn.run.cordoned, turn.now.seconds
        lifted = {
            n: replace(before[n], is_over=True, end_seconds=min(before[n].end_seconds, now))
            for n in node_ids
        }
        turn.change(cordoned={**turn.run.cordoned, **lifted})
        turn.because(f"{', '.join(sorted(node_ids))} may join again")
