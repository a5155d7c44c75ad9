"""The end of a transition: every engine has its assignment, and the recovery is recorded."""

from dataclasses import replace

from planaria_common.words import counted
from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.job.actions import RecordRecovery
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.choose_plan import change_in_words, pipelines_in_words
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.recovery.recovery_costs import recovery_record
from planaria_coordinator.domain.recovery.recovery_record import Recovery
from planaria_coordinator.domain.recovery.transition import (
    PLAN_CHANGES,
    Cause,
    Transition,
    TransitionHistory,
)


def complete(turn: Turn) -> None:
    """Complete a transition: all engines of the plan have activated."""
    transition = turn.transition
    placement = transition.target
    if placement is None:
        raise AssertionError("a transition ends with a plan")
    resumed = [outcome.resume_time for outcome in transition.activated.values()]
    first, last = min(resumed), max(resumed)
    is_first = turn.run.start_time is None
    turn.account(Activity.PRODUCTIVE, at=first if is_first else last)
    turn.change(
        placement=replace(placement, resume_time=first),
        transition=None,
        state=JobState.RUNNING,
        start_time=turn.run.start_time or first,
        interrupted=None,
        waiting_reason="",
    )
    turn.because(f"all {len(resumed)} engines have their assignments")
    if transition.history.cause in PLAN_CHANGES:
        report_recovery(turn, transition)
    else:
        begins = f"training begins {_origin(turn.run)}" if is_first else "training continues"
        turn.emit(
            "job_started" if is_first else "job_running",
            f"{begins} at step {transition.target_steps} in "
            f"{pipelines_in_words(placement.plan.sizes)}",
            step=transition.target_steps,
            pipeline_sizes=list(placement.plan.sizes),
        )
    report_fault_tolerance(turn, placement)


def _origin(run: JobRun) -> str:
    return f"from {run.initial_state.path}" if run.initial_state is not None else "from the seed"


def report_recovery(turn: Turn, transition: Transition) -> None:
    """Record a recovery and its figures, and emit its event."""
    recovery = recovery_record(turn.run, transition, turn.run.num_recoveries + 1)
    message = _recovery_in_words(recovery, transition)
    _record(turn, transition.history, recovery, message, step=transition.target_steps)


def close_recovery(turn: Turn, message: str) -> None:
    """Record a recovery that ends without a plan: the job ends, or pauses.

    The rest of the transition is not part of it.
    """
    transition = turn.transition
    if transition.history.cause not in PLAN_CHANGES:
        return
    recovery = recovery_record(turn.run, transition, turn.run.num_recoveries + 1)
    now = turn.now.time
    sizes = transition.history.sizes_before
    turn.note(
        history=TransitionHistory(
            cause=Cause.FINISHED, start_time=now, first_open_time=now, sizes_before=sizes
        )
    )
    step = turn.run.requirements.trained_steps(transition.target_steps)
    _record(turn, transition.history, recovery, message, step=step)


def _record(
    turn: Turn, history: TransitionHistory, recovery: Recovery, message: str, *, step: int
) -> None:
    turn.change(num_recoveries=recovery.id, suspected=_suspected(turn.run, history, recovery))
    turn.actions.append(RecordRecovery(recovery=recovery))
    turn.emit(
        "recovery_finished",
        message,
        step=step,
        detect_seconds=recovery.detect_seconds,
        fence_seconds=recovery.fence_seconds,
        resume_seconds=recovery.resume_seconds,
        regrow_seconds=recovery.regrow_seconds,
        idle_seconds=recovery.idle_seconds,
        redone_microbatches=recovery.redone_microbatches,
        copied_bytes=recovery.copied_bytes,
        nodes_lost=list(recovery.nodes_lost),
        nodes_joined=list(recovery.nodes_joined),
    )


def _suspected(run: JobRun, history: TransitionHistory, recovery: Recovery) -> dict[str, Recovery]:
    reported = {node_of(engine_id) for engine_id in history.engines_lost} - set(recovery.nodes_lost)
    alive = {engine.node_id for engine in run.prepared_engines.values()}
    held = run.nodes.keys() - alive
    return {
        k: each
        for k, each in {**run.suspected, **dict.fromkeys(reported, recovery)}.items()
        if k in held
    }


def complete_recovery(turn: Turn, node_id: str) -> bool:
    """Add a lost node to the recovery that recorded the loss of its engine; return whether one did.

    The recovery's cause stays, because totals by cause never fall.
    """
    reported = turn.run.suspected.get(node_id)
    if reported is None:
        return False
    whole = replace(reported, nodes_lost=(*reported.nodes_lost, node_id))
    suspected = {
        other: whole if each.id == whole.id else each
        for other, each in turn.run.suspected.items()
        if other != node_id
    }
    turn.change(suspected=suspected)
    turn.actions.append(RecordRecovery(recovery=whole))
    return True


def _recovery_in_words(recovery: Recovery, transition: Transition) -> str:
    return (
        f"training continues from step {transition.target_steps} in "
        f"{change_in_words(recovery.pipeline_sizes_before, recovery.pipeline_sizes_after)}: "
        f"{_figures_in_words(recovery)}"
    )


def _figures_in_words(recovery: Recovery) -> str:
    """Return the figures that are known, under their own names."""
    since_fault = {
        "detect": recovery.detect_seconds,
        "fence": recovery.fence_seconds,
        "resume": recovery.resume_seconds,
        "regrow": recovery.regrow_seconds,
    }
    known = {name: seconds for name, seconds in since_fault.items() if seconds is not None}
    figures = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in known.items())
    idle = f"idle {recovery.idle_seconds:.3f} s" if recovery.idle_seconds is not None else ""
    return ", ".join(filter(None, (f"{figures} after the fault" if figures else "", idle)))


def report_fault_tolerance(turn: Turn, placement: Placement) -> None:
    """Emit an event when the job survives fewer or more losses than before."""
    wanted = turn.run.requirements.fault_tolerance
    now = placement.plan.fault_tolerance
    before = turn.run.announced_fault_tolerance
    turn.change(announced_fault_tolerance=now)
    reference = wanted if before is None else min(before, wanted)
    if now < wanted and now != reference:
        turn.emit(
            "fault_tolerance_reduced" if now < reference else "fault_tolerance_improved",
            f"the job survives losing {counted(now, 'node')} at once now; {wanted} wanted",
            fault_tolerance=now,
            wanted=wanted,
        )
    elif now >= wanted > reference:
        turn.emit(
            "fault_tolerance_restored",
            f"the job survives losing {counted(now, 'node')} at once again",
            fault_tolerance=now,
            wanted=wanted,
        )
