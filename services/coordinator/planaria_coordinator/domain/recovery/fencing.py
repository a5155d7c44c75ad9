"""The fence: order every engine to stop or to sum nothing, hear every survivor, find T*.

protocol/recovery.md, and rules 2 to 4 of protocol/job.md. After a loss, pipelines that have lost
nobody go on computing all the while, and finish the step in flight.
"""

from dataclasses import replace

from planaria_coordinator.domain.engines.directive import Quiesce, QuiesceMode
from planaria_coordinator.domain.engines.engine import Pending
from planaria_coordinator.domain.engines.outcome import FenceReport
from planaria_coordinator.domain.job.commits import note_commit
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.absent_holders import engines_of_another_history
from planaria_coordinator.domain.placement.ask_planner import ask_early
from planaria_coordinator.domain.placement.replicas import (
    has_switched,
    late_engines,
    layers_of_version,
    placement_of,
    target_steps,
    witness_record,
)
from planaria_coordinator.domain.recovery.roll_forward import roll_forward
from planaria_coordinator.domain.recovery.transition import PLAN_CHANGES, Cause, Phase
from planaria_coordinator.domain.recovery.unreachable_holders import layers_missing
from planaria_coordinator.domain.recovery.version_reached import version_reached

_ORDERS = {
    QuiesceMode.IMMEDIATE: "stop at once",
    QuiesceMode.AT_COMMIT: "stop after the next commit",
    QuiesceMode.FENCE: "sum nothing; healthy pipelines keep computing",
}


def begin_quiescing(turn: Turn) -> None:
    """Tell every engine to stop at a safe point and report."""
    transition, run = turn.transition, turn.run
    participants = tuple(sorted(run.prepared_engines))
    mode = transition.mode or QuiesceMode.IMMEDIATE
    if transition.history.cause in PLAN_CHANGES:
        turn.set_state(JobState.RECOVERING)
    if mode is not QuiesceMode.AT_COMMIT:
        finishing = transition.history.cause is Cause.FINISHED
        turn.account(Activity.FINISHING if finishing else Activity.QUIESCE)
    turn.enter(
        Phase.QUIESCING,
        f"{len(participants)} engines are ordered to {_ORDERS[mode]}",
        plans_online=False,
        participants=participants,
        stopped=tuple(sorted(run.required_engines.intersection(participants))),
        mode=mode,
    )
    if not participants:
        _decide_version(turn)
        return
    command = Quiesce(mode=mode, lost_engine_ids=_lost_engines(turn))
    allow = turn.limits.directive_seconds
    if mode is QuiesceMode.AT_COMMIT:
        allow = turn.seconds_until_commit
    for engine_id in participants:
        turn.send(run.engines[engine_id], command, allow_seconds=allow)
    ask_early(turn)


def _lost_engines(turn: Turn) -> tuple[str, ...]:
    """Return lost engines that the current step needs, in the order in which they were lost."""
    run, history = turn.run, turn.transition.history
    gone = sorted(run.required_engines - run.engines.keys())
    return tuple(dict.fromkeys((*history.engines_lost, *gone)))


def fence_reported(turn: Turn, pending: Pending, report: FenceReport) -> None:
    """An engine has reported; when all have, the version that everyone is brought to is known."""
    transition = turn.transition
    turn.note(reports={**transition.reports, pending.engine_id: report})
    at_commit = transition.mode is QuiesceMode.AT_COMMIT
    if at_commit and report.park_time and pending.engine_id in transition.stopped:
        turn.account(Activity.QUIESCE, at=report.park_time)
    if not turn.is_awaiting("quiesce"):
        _decide_version(turn)


def _decide_version(turn: Turn) -> None:
    _set_aside_other_histories(turn)
    run, reports = turn.run, turn.transition.reports
    # With nobody left to ask, the reported steps are gone with their engines.
    target = max(target_steps(reports), run.initial_steps) if reports else run.committed_steps
    if target + 1 < run.committed_steps:  # a dead engine may have been ahead by one
        layers_missing(turn, tuple(range(run.requirements.num_layers)), run.committed_steps)
        return
    turn.note(
        target_steps=target,
        holdings={e: layers_of_version(report.layers, target) for e, report in reports.items()},
        has_switched=has_switched(run.candidate, reports),
    )
    _note_fence(turn)
    turn.change(committed_steps=target)
    record = witness_record(reports, target)
    if record is not None:
        note_commit(turn, record)
    late = late_engines(reports, target, placement_of(record, run.placements))
    num_steps = run.requirements.trained_steps(target)
    turn.emit(
        "fence_complete",
        f"all {len(reports)} engines have reported: they are at step {num_steps}",
        step=num_steps,
        engines=len(reports),
    )
    if record is not None and late:
        roll_forward(turn, record, late)
    else:
        version_reached(turn)


def _set_aside_other_histories(turn: Turn) -> None:
    """Do without engines that came back after the others had gone on: their bits may differ."""
    run, reports = turn.run, turn.transition.reports
    returned = {e for e in reports if e in run.engines and run.engines[e].has_returned}
    others = engines_of_another_history(reports, returned, run.required_engines)
    if others:
        turn.note(reports={e: r for e, r in reports.items() if e not in others})
        turn.stop_engines(sorted(others), "the job went on from another commit than its last")


def _note_fence(turn: Turn) -> None:
    """Note when the last survivor was fenced, and at the first fence, which step was hit.

    Engines that report again, and have not activated in between, were fenced before. Where engines
    got another plan since the last commit, that is in the length of this step, too.
    """
    transition, run = turn.transition, turn.run
    history = transition.history
    if transition.mode is QuiesceMode.AT_COMMIT or not transition.reports:
        return
    if history.fence_time is None and run.last_commit_time is not None:
        began = run.placement.resume_time if run.placement else None
        is_clean = began is None or began <= run.last_commit_time
        history = replace(history, hit_step=transition.target_steps if is_clean else None)
    if history.fence_time is None or history.has_activated:
        fence_time = max(report.fence_time for report in transition.reports.values())
        history = replace(history, fence_time=fence_time, has_activated=False)
    turn.note(history=history)
