"""What a recovery cost, from the engines' own timestamps."""

from collections.abc import Iterable
from datetime import datetime

from planaria_coordinator.domain.directive import QuiesceMode
from planaria_coordinator.domain.recovery import Recovery, RecoveryPhase
from planaria_coordinator.domain.run import JobRun, Transition


def recovery_record(run: JobRun, transition: Transition, number: int) -> Recovery:
    """Return the record of a transition whose engines all have their places."""
    story = transition.story
    end = _end(transition)
    parked = _park_times(transition)
    planned = transition.mode is QuiesceMode.AT_COMMIT
    start = min(parked, default=story.start_time) if planned else story.start_time
    copied_bytes = sum(outcome.num_bytes for outcome in transition.copied.values())
    idle_seconds = sum(
        _seconds(transition.reports[engine_id].park_time, _resume_time(transition, engine_id, end))
        for engine_id in transition.stopped
    )
    return Recovery(
        job_id=run.job_id,
        id=number,
        cause=str(story.cause),
        generation=transition.generation,
        start_time=start,
        end_time=max(start, end),
        pause_seconds=_seconds(start, end),
        nodes_lost=story.nodes_lost,
        nodes_joined=story.nodes_joined,
        redone_microbatches=story.redone_microbatches,
        copied_bytes=story.copied_bytes + copied_bytes,
        phases=tuple(_phases(transition)),
        lost_accelerator_seconds={"idle": idle_seconds, "redone": story.redone_seconds},
        pipeline_sizes_before=story.sizes_before,
        pipeline_sizes_after=transition.target.plan.sizes if transition.target else (),
        reason=transition.target.reason if transition.target else "",
    )


def _end(transition: Transition) -> datetime:
    """Return when the last engine that had to stop could compute again, or at least the last."""
    outcomes = transition.activated
    had_to_stop = [outcomes[e].resume_time for e in transition.stopped if e in outcomes]
    return max(had_to_stop or [outcome.resume_time for outcome in outcomes.values()])


def _park_times(transition: Transition) -> list[datetime]:
    return [transition.reports[engine_id].park_time for engine_id in transition.stopped]


def _resume_time(transition: Transition, engine_id: str, end: datetime) -> datetime:
    """An engine without a place stands still until all others go on."""
    outcome = transition.activated.get(engine_id)
    return outcome.resume_time if outcome is not None else end


def _phases(transition: Transition) -> Iterable[RecoveryPhase]:
    story = transition.story
    if story.start_time < story.first_open_time:
        yield _phase("detect", story.start_time, story.first_open_time)
    parked = _park_times(transition)
    if parked:
        planned = transition.mode is QuiesceMode.AT_COMMIT
        yield _phase("quiesce", min(parked) if planned else story.first_open_time, max(parked))
    if transition.asked_time is not None and transition.answered_time is not None:
        yield _phase("plan", transition.asked_time, transition.answered_time)
    copies = [outcome for outcome in transition.copied.values() if outcome.num_bytes]
    if copies:
        yield _phase("copy", min(c.start_time for c in copies), max(c.end_time for c in copies))
    outcomes = transition.activated.values()
    resumed = [outcome.resume_time for outcome in outcomes]
    yield _phase("rebuild", min(o.rebuild_start_time for o in outcomes), max(resumed))
    yield _phase("resume", min(resumed), max(resumed))


def _phase(name: str, start: datetime, end: datetime) -> RecoveryPhase:
    return RecoveryPhase(name=name, start_time=start, duration_seconds=_seconds(start, end))


def _seconds(start: datetime, end: datetime) -> float:
    """Clocks of different machines may disagree: no length is negative."""
    return max(0.0, (end - start).total_seconds())
