"""The record of a recovery: its figures, its phases and what it cost, from the engines' timestamps.

A recovery in which healthy pipelines finish the step in flight takes two generations: the history
carries what the first of them took. Engines that lost their pipeline are idle until they have
another one, which is the end of the recovery. An online change stops only engines whose assignment
changes, between the commit and the moment they have the new one.
"""

from collections.abc import Iterable
from datetime import datetime

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.recovery.recovery_figures import hit_step, recovery_figures
from planaria_coordinator.domain.recovery.recovery_record import Recovery, RecoveryPhase
from planaria_coordinator.domain.recovery.transition import Transition


def recovery_record(run: JobRun, transition: Transition, number: int) -> Recovery:
    """Return the record of a recovery that ends with a transition."""
    history = transition.history
    end = _end(transition)
    stopped = stop_times(transition)
    start = history.start_time
    if transition.begins_at_commit:  # its beginning is when the first engine stopped
        start = min((stopped[e] for e in _had_to_stop(transition)), default=end)
    figures = recovery_figures(transition)
    idle_engine_seconds = sum(
        _seconds(stop_time, _resume_time(transition, engine_id, end))
        for engine_id, stop_time in stopped.items()
        if engine_id in run.engines
    )
    return Recovery(
        job_id=run.job_id,
        id=number,
        cause=str(history.cause),
        generation=transition.generation,
        start_time=start,
        end_time=max(start, end),
        detect_seconds=figures.detect_seconds,
        fence_seconds=figures.fence_seconds,
        resume_seconds=figures.resume_seconds,
        regrow_seconds=figures.regrow_seconds,
        idle_seconds=figures.idle_seconds,
        hit_step=hit_step(transition),
        nodes_lost=history.nodes_lost,
        nodes_joined=history.nodes_joined,
        redone_microbatches=history.redone_microbatches,
        copied_bytes=history.copied_bytes + transition.copied_bytes,
        phases=phases_of(transition),
        lost_accelerator_seconds={"idle": idle_engine_seconds, "redone": history.redone_seconds},
        pipeline_sizes_before=history.sizes_before,
        pipeline_sizes_after=transition.target.plan.sizes if transition.target else (),
        reason=transition.target.reason if transition.target else "",
    )


def stop_times(transition: Transition) -> dict[str, datetime]:
    """Return, by engine, since when it is stopped; those that compute are not among them."""
    reports = transition.reports
    parked = {e: reports[e].park_time for e in transition.stopped if e in reports}
    times = {engine_id: time for engine_id, time in parked.items() if time is not None}
    return {**_changed_assignments(transition), **times, **transition.history.stop_times}


def _changed_assignments(transition: Transition) -> dict[str, datetime]:
    """By engine that trained and changed its assignment at a commit: when it stopped there."""
    if not transition.staged:
        return {}
    return {
        engine_id: outcome.rebuild_start_time
        for engine_id, outcome in transition.activated.items()
        if engine_id in transition.stopped and outcome.resume_time > outcome.rebuild_start_time
    }


def phases_of(transition: Transition) -> tuple[RecoveryPhase, ...]:
    """Return the phases so far, each name once: the times of two generations are added."""
    merged: dict[str, RecoveryPhase] = {}
    for phase in (*transition.history.phases, *_phases(transition)):
        seen = merged.get(phase.name)
        merged[phase.name] = phase if seen is None else _added(seen, phase)
    return tuple(sorted(merged.values(), key=lambda phase: phase.start_time))


def _added(phase: RecoveryPhase, other: RecoveryPhase) -> RecoveryPhase:
    return RecoveryPhase(
        name=phase.name,
        start_time=min(phase.start_time, other.start_time),
        duration_seconds=phase.duration_seconds + other.duration_seconds,
    )


def _end(transition: Transition) -> datetime:
    """Return when the last engine that had to stop could compute again."""
    outcomes, history = transition.activated, transition.history
    resumed = [outcomes[e].resume_time for e in _had_to_stop(transition) if e in outcomes]
    if not resumed and transition.regrows and history.resume_time is not None:
        return history.resume_time  # healthy pipelines were all that was left, and never stopped
    if not outcomes:  # the job's end came first: nobody had to compute again
        stands = [report.park_time or report.fence_time for report in transition.reports.values()]
        return max(stands, default=history.start_time)
    return max(resumed or [outcome.resume_time for outcome in outcomes.values()])


def _had_to_stop(transition: Transition) -> Iterable[str]:
    if transition.regrows:
        return transition.history.stop_times
    if transition.staged:
        return _changed_assignments(transition)
    return stop_times(transition)


def _resume_time(transition: Transition, engine_id: str, end: datetime) -> datetime:
    """An engine without an assignment is stopped until all others continue."""
    outcome = transition.activated.get(engine_id)
    return outcome.resume_time if outcome is not None else end


def _phases(transition: Transition) -> Iterable[RecoveryPhase]:
    history = transition.history
    if history.start_time < history.first_open_time and not history.phases:
        yield _phase("detect", history.start_time, history.first_open_time)
    reports = [transition.reports[e] for e in transition.stopped if e in transition.reports]
    still = [report.park_time or report.fence_time for report in reports]
    if still and not transition.staged:
        at_commit = transition.mode is QuiesceMode.AT_COMMIT
        yield _phase("quiesce", min(still) if at_commit else history.first_open_time, max(still))
    planned = transition.asked_time, transition.answered_time
    if planned[0] is not None and planned[1] is not None and not transition.finishes_step:
        yield _phase("plan", planned[0], planned[1])
    copies = [outcome for outcome in transition.copied.values() if outcome.num_bytes]
    if copies:
        yield _phase("copy", min(c.start_time for c in copies), max(c.end_time for c in copies))
    yield from _phases_of_staging(transition)
    outcomes = transition.activated.values()
    if outcomes:
        resumed = [outcome.resume_time for outcome in outcomes]
        if not transition.staged:
            yield _phase("rebuild", min(o.rebuild_start_time for o in outcomes), max(resumed))
        yield _phase("activate", min(resumed), max(resumed))


def _phases_of_staging(transition: Transition) -> Iterable[RecoveryPhase]:
    """What was done while training continued."""
    outcomes = transition.staged.values()
    if not outcomes:
        return
    start = min(outcome.start_time for outcome in outcomes)
    yield _phase("rebuild", start, max(outcome.rebuild_end_time for outcome in outcomes))
    copied = [o.copy_end_time for o in outcomes if o.copy_end_time is not None]
    if copied:
        yield _phase("copy", start, max(copied))


def _phase(name: str, start: datetime, end: datetime) -> RecoveryPhase:
    return RecoveryPhase(name=name, start_time=start, duration_seconds=_seconds(start, end))


def _seconds(start: datetime, end: datetime) -> float:
    """Return a length; clocks of machines may disagree, so none is negative."""
    return max(0.0, (end - start).total_seconds())
