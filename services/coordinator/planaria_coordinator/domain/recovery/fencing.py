"""Bring everyone to one version: quiesce, hear every survivor, roll late engines forward.

protocol/recovery.md, and rules 2 to 4 of protocol/job.md. After a loss, pipelines that have lost
nobody go on computing all the while, and finish the step in flight.
"""

from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.checkpoint.checkpoint_protocol import fill_gaps
from planaria_coordinator.domain.engines.directive import (
    CommitRecord,
    Quiesce,
    QuiesceMode,
    RollForward,
)
from planaria_coordinator.domain.engines.engine import Pending
from planaria_coordinator.domain.engines.outcome import FenceReport, RolledForward
from planaria_coordinator.domain.job.end_of_training import begin_digesting
from planaria_coordinator.domain.job.ending import fail, park
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.resume_advice import resume_advice
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.ask_planner import ask_early
from planaria_coordinator.domain.placement.choose_plan import (
    choose_plan,
    pipelines_in_words,
)
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.replicas import (
    has_switched,
    holdings_of_placement,
    late_engines,
    layers_of_version,
    layers_without_replica,
    placement_of,
    target_steps,
    witness_record,
)
from planaria_coordinator.domain.recovery.activation import begin_activation
from planaria_coordinator.domain.recovery.finish_step import (
    KeptPipeline,
    finishing_placement,
    kept_pipelines,
)
from planaria_coordinator.domain.recovery.transition import PLAN_CHANGES, Cause, Phase
from planaria_coordinator.domain.recovery.transition_completion import close_recovery

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
    run, reports = turn.run, turn.transition.reports
    # With nobody left to ask, the reported steps are gone with their engines.
    target = max(target_steps(reports), run.initial_steps) if reports else run.committed_steps
    if target + 1 < run.committed_steps:  # a dead engine may have been ahead by one
        _state_lost(turn, tuple(range(run.requirements.num_layers)), run.committed_steps)
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
        turn.run = turn.run.with_evaluation(record)
    late = late_engines(reports, target, placement_of(record, run.placements))
    num_steps = run.requirements.trained_steps(target)
    turn.emit(
        "fence_complete",
        f"all {len(reports)} engines have reported: they are at step {num_steps}",
        step=num_steps,
        engines=len(reports),
    )
    if record is not None and late:
        _roll_forward(turn, record, late)
    else:
        version_reached(turn)


def _note_fence(turn: Turn) -> None:
    """Note when the last survivor was fenced, and at the first fence, which step was hit.

    Engines that are collected again, and have not activated in between, were fenced before. Where
    engines got another plan since the last commit, that is in the length of this step, too.
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


def _note_redone(turn: Turn, kept: tuple[KeptPipeline, ...]) -> None:
    """Count what was computed for the step in flight and is not kept: it is computed again.

    Engines that are fenced twice without an assignment in between report the same again.
    """
    transition, run = turn.transition, turn.run
    history = transition.history
    keepers = {e for pipeline in kept for e in _engines_of(turn, pipeline)}
    current = {
        engine_id: report
        for engine_id, report in transition.reports.items()
        if report.committed_steps == transition.target_steps
        and report.step_compute_seconds > 0
        and engine_id not in keepers
        and engine_id not in history.redone_by
    }
    if not current or transition.mode is QuiesceMode.AT_COMMIT:
        return
    finished = {m for report in current.values() for m in report.finished_microbatches}
    seconds = sum(report.step_compute_seconds for report in current.values())
    turn.note(
        history=replace(
            history,
            redone_by=(*history.redone_by, *current),
            redone_microbatches=history.redone_microbatches + len(finished),
            redone_seconds=history.redone_seconds + seconds,
        )
    )
    resumed = run.placement.resume_time if run.placement else None
    starts = [time for time in (run.last_commit_time, resumed) if time is not None]
    if starts and not history.redone_by and not kept:  # else that time was used well by some
        lost_seconds = (history.start_time - max(starts)).total_seconds()
        turn.change(
            time_account=run.time_account.move(Activity.PRODUCTIVE, Activity.REDONE, lost_seconds)
        )


def _roll_forward(turn: Turn, record: CommitRecord, late: tuple[str, ...]) -> None:
    turn.enter(
        Phase.ROLLING_FORWARD, f"{len(late)} engines apply step {record.step} from its record"
    )
    turn.emit(
        "step_rolled_forward",
        f"step {record.step} was committed by some engines: {len(late)} others apply it now",
        step=record.step,
        engines=len(late),
    )
    for engine_id in late:
        turn.send(
            turn.run.engines[engine_id],
            RollForward(record=record),
            allow_seconds=turn.limits.directive_seconds,
        )


def on_rolled_forward(turn: Turn, pending: Pending, outcome: RolledForward | None) -> None:
    """An engine applied the step, but for stale layers; None: it could not at all."""
    transition = turn.transition
    if outcome is not None and outcome.committed_steps == transition.target_steps:
        fresh = _rolled_forward(turn, pending.engine_id, outcome)
        turn.note(holdings={**transition.holdings, pending.engine_id: fresh})
    if not turn.is_awaiting("roll_forward"):
        version_reached(turn)


def _rolled_forward(turn: Turn, engine_id: str, outcome: RolledForward) -> tuple[int, ...]:
    """Return its layers of version T*: of those it had, the ones that it has summed.

    Layers left from an older assignment have no sums, and are of no use any more.
    """
    run, transition = turn.run, turn.transition
    placement = placement_of(
        witness_record(transition.reports, transition.target_steps), run.placements
    )
    summed: tuple[int, ...] = ()
    if placement is not None:
        placed = holdings_of_placement(placement, (engine_id,), run.requirements)
        summed = placed.get(engine_id, ())
    held = layers_of_version(transition.reports[engine_id].layers, transition.target_steps - 1)
    return tuple(k for k in held if k in summed and k not in outcome.stale_layers)


def _engines_of(turn: Turn, pipeline: KeptPipeline) -> tuple[str, ...]:
    placement = turn.run.in_force
    return placement.stage_engines[pipeline.index] if placement else ()


def _kept_pipelines(turn: Turn) -> tuple[KeptPipeline, ...]:
    run, transition = turn.run, turn.transition
    placement = run.in_force
    if transition.mode is not QuiesceMode.FENCE or placement is None:
        return ()
    if transition.target_steps >= run.requirements.num_commits:
        return ()  # no step is in flight any more
    record = witness_record(transition.reports, transition.target_steps)
    return kept_pipelines(
        placement,
        transition.reports,
        transition.holdings,
        transition.target_steps,
        run.requirements,
        parks_after_commit=record is not None and record.next_generation > 0,
    )


def version_reached(turn: Turn) -> None:
    """Everyone stands at T*: what comes next?"""
    fill_gaps(turn)
    kept = _kept_pipelines(turn)
    _note_redone(turn, kept)
    transition, run = turn.transition, turn.run
    target = transition.target_steps
    lost = layers_without_replica(transition.holdings, run.requirements.num_layers)
    if lost and target > run.initial_steps:
        _state_lost(turn, lost, target)
    elif target >= run.requirements.num_commits:
        steps = run.requirements.steps
        close_recovery(turn, f"all {steps} steps are committed: nothing is left to recover for")
        begin_digesting(turn)
    elif kept and run.in_force is not None:
        _finish_step(turn, run.in_force, kept)
    elif run.pause_wanted:
        if transition.history.cause in (Cause.NODE_LOST, Cause.ENGINE_LOST):
            close_recovery(turn, "a pause is wanted: the rest of the recovery follows after it")
        park(turn, JobState.PAUSED, f"the job is paused at step {target}")
    else:
        choose_plan(turn)


def _state_lost(turn: Turn, lost: tuple[int, ...], step: int) -> None:
    layers = ",".join(str(layer) for layer in lost)
    newest = turn.run.newest_checkpoint
    step = turn.run.requirements.trained_steps(step)
    how = f", the last as {turn.run.last_fault}" if turn.run.last_fault else ""
    fail(
        turn,
        ErrorReason.STATE_LOST,
        f"every replica of layers {layers} is gone at step {step}{how}: {resume_advice(turn.run)}",
        {"layers": layers, **({"checkpoint": newest} if newest else {})},
    )


def _finish_step(turn: Turn, placement: Placement, kept: tuple[KeptPipeline, ...]) -> None:
    """Give the step in flight to the healthy pipelines; nothing is planned, nothing is copied."""
    transition, run = turn.transition, turn.run
    target = finishing_placement(
        placement,
        kept,
        transition.holdings,
        run.engines,
        run.requirements,
        generation=transition.generation,
    )
    turn.note(target=target)
    num_all = run.requirements.num_microbatches
    num_kept = sum(len(pipeline.microbatches) for pipeline in kept)
    turn.emit(
        "step_finished_by",
        f"step {transition.target_steps} is finished by "
        f"{pipelines_in_words(target.plan.sizes)}: {num_kept} of {num_all} microbatches kept, "
        f"{num_all - num_kept} dealt out again",
        step=transition.target_steps,
        pipeline_sizes=list(target.plan.sizes),
        kept_microbatches=num_kept,
        lost_microbatches=num_all - num_kept,
        followers=sorted(target.followers),
    )
    begin_activation(turn)
