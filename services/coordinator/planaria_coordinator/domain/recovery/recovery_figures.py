"""The figures of a recovery, and the timestamps that each of them comes from.

Every figure but the last two is the time since the fault, `TransitionHistory.start_time`: when the
death was seen, or the last heartbeat where only silence showed the loss. A figure whose timestamps
do not exist is None. Engines have clocks of their own, so no length is below 0, and none of the
first four is below the one before it.

| figure | until |
| --- | --- |
| `detect_seconds` | the coordinator opened the first generation for the loss |
| `fence_seconds` | the last survivor saw the fence: the largest `FenceReport.fence_time` |
| `resume_seconds` | all survivors take part in the step again: the largest `resume_time` of the |
| | Activate after the fence |
| `regrow_seconds` | every survivor that the new plan uses has a pipeline again |

`idle_seconds` is how long nobody computed: from the last pass or update that any engine finished
before the change (`FenceReport.compute_end_time`; `rebuild_start_time` where engines switch at a
commit) to the first engine that can compute again. It is 0 where some pipeline goes on computing;
waits within a step that goes on do not count.

`lost_seconds` is the length of the step that was hit minus the median of the next whole steps on
the plan that finished it, from commit to commit, as engines report them. It is known only after
these steps, and None when that plan runs fewer than three of them.

- Loss, and healthy pipelines finish the step: fence and resume are of the first transition. Regrow
  is when the last engine of a broken pipeline has switched, in the second. The step that was hit is
  the one in flight at the fence.
- Loss without healthy pipelines: all of the only transition; regrow is resume.
- Another loss before the end: where engines had activated in between, fence and resume are those
  after the last loss. Fault, detection and the step that was hit stay those of the first.
- The job waits for nodes: the wait is part of resume and regrow.
- Join or drain: no fault, so the first four are None. The step that was hit is the first one of the
  new plan.
- Resumed after a pause: as for a join, but no step was hit, since its length has the pause in it.
- The job ends or pauses before the end: None from there on.
- The coordinator restarts: everything up to the last stored decision stays; engines that
  report again count as fenced again only where they had activated, or had not all reported.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.job.job import StepMetrics
from planaria_coordinator.domain.recovery.transition import Cause, Transition

LOSSES = (Cause.NODE_LOST, Cause.ENGINE_LOST)
MIN_WHOLE_STEPS = 3
MAX_WHOLE_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFigures:
    """The figures that are known when a recovery ends; see the module."""

    detect_seconds: float | None = None
    fence_seconds: float | None = None
    resume_seconds: float | None = None
    regrow_seconds: float | None = None
    idle_seconds: float | None = None


def recovery_figures(transition: Transition) -> RecoveryFigures:
    """Return the figures of the recovery that ends with a transition."""
    history = transition.history
    idle = idle_seconds(transition)
    if history.cause not in LOSSES:
        return RecoveryFigures(idle_seconds=idle)
    ends = (
        history.first_open_time,
        history.fence_time,
        resume_time(transition),
        _regrow_time(transition),
    )
    detect, fence, resume, regrow = _growing_seconds(history.start_time, ends)
    return RecoveryFigures(
        detect_seconds=detect,
        fence_seconds=fence,
        resume_seconds=resume,
        regrow_seconds=regrow,
        idle_seconds=idle,
    )


def _growing_seconds(start: datetime, ends: Iterable[datetime | None]) -> tuple[float | None, ...]:
    """Return the seconds until each moment; clocks may differ, so none is below the one before."""
    found: list[float | None] = []
    least = 0.0
    for end in ends:
        if end is None:
            found.append(None)
            continue
        least = max(least, (end - start).total_seconds())
        found.append(least)
    return tuple(found)


def resume_time(transition: Transition) -> datetime | None:
    """Return when all survivors took part in steps again; None: they never did."""
    if transition.mode is QuiesceMode.AT_COMMIT:
        return transition.history.resume_time
    return max((outcome.resume_time for outcome in transition.activated.values()), default=None)


def _regrow_time(transition: Transition) -> datetime | None:
    history = transition.history
    if transition.mode is not QuiesceMode.AT_COMMIT:
        return resume_time(transition)
    outcomes = transition.activated
    regrown = [outcomes[e].resume_time for e in history.stop_times if e in outcomes]
    if regrown:
        return max(regrown)
    has_plan = bool(outcomes) or transition.target is not None
    return history.resume_time if has_plan else None  # the plan uses healthy pipelines only


def idle_seconds(transition: Transition) -> float | None:
    """Return how long nobody computed, with what earlier transitions of the recovery add to it."""
    before = transition.history.idle_seconds
    target = transition.target
    placed = {e for pipeline in target.stage_engines for e in pipeline} if target else set()
    resumed = [o.resume_time for e, o in transition.activated.items() if e in placed]
    if not resumed:
        return before
    reports = [transition.reports[e] for e in transition.stopped if e in transition.reports]
    if any(report.park_time is None for report in reports):
        return before or 0.0
    stops = [report.compute_end_time for report in reports]
    if transition.staged:
        stopped = (transition.activated.get(e) for e in transition.stopped)
        stops += [outcome.rebuild_start_time for outcome in stopped if outcome is not None]
    computed = [stop for stop in stops if stop is not None]
    if not computed:
        return before
    start = max(transition.history.start_time, *computed)
    return (before or 0.0) + max(0.0, (min(resumed) - start).total_seconds())


def hit_step(transition: Transition) -> int | None:
    """Return the step whose length has the change in it; None where it has more in it."""
    history = transition.history
    if history.cause is Cause.RESUMED or transition.target is None:
        return None
    return history.hit_step if history.cause in LOSSES else transition.target_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """What the step that was hit took beyond a usual one."""

    seconds: float | None
    is_final: bool
    """Whether no further step can change it."""


def lost_time(
    step: int, generation: int, steps: Sequence[StepMetrics], *, has_ended: bool
) -> LostTime:
    """Compare the step that was hit with the next whole steps on the plan that finished it.

    Args:
        step: the step that was hit.
        generation: the one that the recovery led to; a newer one finished the step after another
            change, which is in its length too.
        steps: the committed ones in order, from the one before the step that was hit.
        has_ended: whether the job has: no further step follows.
    """
    known = {each.step: each for each in steps}
    hit, before = known.get(step), known.get(step - 1)
    if hit is None:
        return LostTime(seconds=None, is_final=has_ended or _is_past(step, steps))
    if before is None or hit.generation > generation:
        return LostTime(seconds=None, is_final=True)
    times = [hit.commit_time]
    for number in range(step + 1, step + 1 + MAX_WHOLE_STEPS):
        following = known.get(number)
        if following is None or following.generation != hit.generation or not following.num_tokens:
            break
        times.append(following.commit_time)
    has_changed = any(each.generation > hit.generation for each in steps)
    is_final = has_ended or has_changed or _is_past(step, steps)
    if not is_final or len(times) <= MIN_WHOLE_STEPS:
        return LostTime(seconds=None, is_final=is_final)
    usual = statistics.median((b - a).total_seconds() for a, b in pairwise(times))
    seconds = (hit.commit_time - before.commit_time).total_seconds() - usual
    return LostTime(seconds=max(0.0, seconds), is_final=True)


def _is_past(step: int, steps: Sequence[StepMetrics]) -> bool:
    return any(each.step >= step + MAX_WHOLE_STEPS for each in steps)
