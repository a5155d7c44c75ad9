"""Waiting for engines that hold the last replicas of layers, and are only unreachable.

A job that lacks layers and whose holders may come back is WAITING. When an agent comes back with
such engines, they are engines of the job again, and a fence shows what they have. After
`resilience.unreachable_timeout_seconds` the job takes its newest checkpoint, if there is one.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from planaria_common.words import ranges_of
from planaria_coordinator.domain.job.ending import park
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import HoldersReturned
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.job.waiting import announce_waiting
from planaria_coordinator.domain.placement.absent_holders import (
    AwaitedState,
    are_held,
    holders_in_words,
    holders_on,
)
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.recovery.restore import restore_or_fail


def note_unreachable(turn: Turn, node_id: str, fault_time: datetime) -> None:
    """Keep in mind what the engines of a lost node hold; before they are struck off the roster."""
    run = turn.run
    node = run.nodes.get(node_id)
    if node is None:
        return
    engines = run.prepared_engines.values()
    since = min(fault_time, turn.now.time)
    copied = run.transition.holdings if run.transition is not None else {}
    found = holders_on(node, engines, run.placements, copied, run.requirements, since=since)
    turn.change(absent={**run.absent, **found})


def note_away(turn: Turn, node_id: str) -> None:
    """An agent that had come back is away again."""
    away = {
        engine_id: replace(holder, is_back=False)
        if holder.node.node_id == node_id and holder.is_back
        else holder
        for engine_id, holder in turn.run.absent.items()
    }
    if away != turn.run.absent:
        turn.change(absent=away)


def forget_holders(turn: Turn, gone: Collection[str]) -> None:
    """Wait no longer for engines whose processes have ended."""
    if not turn.run.absent.keys().isdisjoint(gone):
        turn.change(absent={k: h for k, h in turn.run.absent.items() if k not in gone})


def holders_returned(turn: Turn, signal: HoldersReturned) -> None:
    """An agent is back with engines that the job had lost: until a commit they may be needed."""
    run = turn.run
    back = [engine_id for engine_id in signal.engine_ids if engine_id in run.absent]
    if back:
        returned = {e: replace(run.absent[e], node=signal.node, is_back=True) for e in back}
        turn.change(absent={**run.absent, **returned})
        turn.because(f"{', '.join(back)} may be needed")


def gone_on_without(turn: Turn, placement: Placement) -> None:
    """A step was committed: those that had no part in it are needed no more.

    Those that came back are stopped, and their nodes join afresh.
    """
    outside = {e: h for e, h in turn.run.absent.items() if e not in placement.engine_ids}
    dismiss(turn, [e for e, holder in outside.items() if holder.is_back])
    forget_holders(turn, outside.keys())


def dismiss(turn: Turn, engine_ids: Collection[str]) -> None:
    """Stop engines that came back and are not needed."""
    if engine_ids:
        _enlist(turn, engine_ids)
        turn.stop_engines(engine_ids, "the job went on without it")


def admit_returned(turn: Turn) -> tuple[str, ...]:
    """Make those that came back engines of a job again that waits for its state; return them."""
    run = turn.run
    parked = run.state in (JobState.WAITING, JobState.PAUSED) and run.transition is None
    if run.awaited_state is None or not parked:
        return ()
    back = tuple(sorted(e for e, holder in run.absent.items() if holder.is_back))
    if not back:
        return ()
    nodes = {run.absent[e].node.node_id: run.absent[e].node for e in back}
    turn.change(nodes={**run.nodes, **nodes})
    _enlist(turn, back)
    turn.emit(
        "holders_returned",
        f"{', '.join(sorted(nodes))} came back with engines that may hold layers "
        f"{ranges_of(run.awaited_state.layers)}",
        nodes=sorted(nodes),
        engines=list(back),
    )
    return back


def _enlist(turn: Turn, engine_ids: Collection[str]) -> None:
    run = turn.run
    engines = {e: replace(run.absent[e].engine, has_returned=True) for e in engine_ids}
    turn.change(
        engines={**run.engines, **engines},
        absent={e: holder for e, holder in run.absent.items() if e not in engines},
    )


def state_is_whole(turn: Turn) -> None:
    """Every layer has a replica: nobody is waited for any more."""
    if turn.run.awaited_state is not None:
        turn.change(awaited_state=None)


def layers_missing(turn: Turn, layers: tuple[int, ...], step: int) -> None:
    """Wait for layers without a replica while somebody may come back with them.

    Args:
        turn: the decision, with a transition under way.
        layers: those without a replica.
        step: the version that they are missing in.
    """
    if not are_held(layers, turn.run.absent):
        restore_or_fail(turn, layers, step)
        return
    now = turn.now
    awaited = turn.run.awaited_state or AwaitedState(
        layers=layers,
        since=now.time,
        deadline_seconds=now.seconds + turn.run.requirements.unreachable_timeout_seconds,
    )
    # The deadline stays as it is, whatever the time of day: somebody may have set the clock.
    due = now.seconds if awaited.deadline_seconds is None else awaited.deadline_seconds
    turn.change(awaited_state=replace(awaited, layers=layers, deadline_seconds=due))
    state = JobState.PAUSED if turn.run.pause_wanted else JobState.WAITING
    park(turn, state, "the only holders of some layers are unreachable")
    holders_overdue(turn)
    if turn.run.awaited_state is not None and state is JobState.WAITING:
        _announce(turn, layers)


def _seconds_left(turn: Turn, since: datetime) -> float:
    passed_seconds = max(0.0, (turn.now.time - since).total_seconds())
    return max(0.0, turn.run.requirements.unreachable_timeout_seconds - passed_seconds)


def _announce(turn: Turn, layers: tuple[int, ...]) -> None:
    run = turn.run
    timeout = run.requirements.unreachable_timeout_seconds
    then = f"or after {timeout:g} s from {run.newest_checkpoint}"
    if not run.newest_checkpoint:
        then = "and there is no checkpoint to go back to"
    where = holders_in_words(layers, run.absent)
    announce_waiting(turn, f"{where}; the job goes on when one of them is back, {then}")


def judge_again(turn: Turn) -> None:
    """Holders were found to be gone: are the awaited layers anywhere yet?"""
    run = turn.run
    if run.awaited_state is None or run.transition is not None or run.state is not JobState.WAITING:
        return
    layers = run.awaited_state.layers
    is_overdue = run.awaited_state.deadline_seconds is None
    if are_held(layers, run.absent) and not (is_overdue and run.newest_checkpoint):
        _announce(turn, layers)
    else:
        restore_or_fail(turn, layers, run.committed_steps)


def holders_overdue(turn: Turn) -> None:
    """Take the newest checkpoint when holders were waited for long enough; else wait on."""
    run = turn.run
    awaited = run.awaited_state
    due = awaited.deadline_seconds if awaited is not None else None
    parked = run.state is JobState.WAITING and run.transition is None
    if awaited is None or due is None or due > turn.now.seconds or not parked:
        return
    if run.newest_checkpoint:
        restore_or_fail(turn, awaited.layers, run.committed_steps)
    else:
        turn.change(awaited_state=replace(awaited, deadline_seconds=None))


def restart_holders_deadline(turn: Turn) -> None:
    """Count the time on the clock of another coordinator; agents have yet to come back to it."""
    awaited = turn.run.awaited_state
    absent = {e: replace(holder, is_back=False) for e, holder in turn.run.absent.items()}
    turn.note_run(absent=absent)
    if awaited is not None:
        deadline = turn.now.seconds + _seconds_left(turn, awaited.since)
        turn.note_run(awaited_state=replace(awaited, deadline_seconds=deadline))
