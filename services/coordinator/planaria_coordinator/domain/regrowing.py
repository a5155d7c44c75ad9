"""The second half of a recovery: those who lost their pipeline get places, behind a commit.

Whole pipelines finish the step in flight meanwhile. The planner is asked at once, but engines are
told to stop only when its answer is there.
"""

from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.accounting import phases_of, stop_times
from planaria_coordinator.domain.completion import tell_of_fault_tolerance, tell_of_recovery
from planaria_coordinator.domain.ending import fail
from planaria_coordinator.domain.fencing import ask_ahead, begin_quiescing
from planaria_coordinator.domain.finish_step import same_pipelines
from planaria_coordinator.domain.job import JobState
from planaria_coordinator.domain.ledger import Activity
from planaria_coordinator.domain.opening import carried_story, open_ahead
from planaria_coordinator.domain.placing import wants_less
from planaria_coordinator.domain.run import Placement
from planaria_coordinator.domain.signals import PlanRefused
from planaria_coordinator.domain.turn import Turn


def begin_regrowing(turn: Turn) -> None:
    """All who finish the step have their places: open the generation that follows."""
    transition = turn.transition
    placement = _running(turn)
    resumed = [outcome.resume_time for outcome in transition.activated.values()]
    first, last = min(resumed), max(resumed)
    turn.account(Activity.PRODUCTIVE, at=last)
    turn.change(
        placement=replace(placement, resume_time=first),
        start_time=turn.run.start_time or first,
    )
    wounded = stop_times(transition)
    story = replace(
        carried_story(turn),
        stop_times={e: time for e, time in wounded.items() if e in turn.run.engines},
        resume_time=last,
        phases=phases_of(transition),
    )
    open_ahead(turn, story, f"step {transition.target_steps} is under way; next comes a new plan")


def regrow_when_due(turn: Turn) -> None:
    """Stop everyone behind the next commit as soon as it is known what for."""
    run = turn.run
    if run.transition is None or not run.transition.is_ahead:
        return
    answer = run.transition.answer
    if run.pause_wanted or run.committed_steps >= run.requirements.steps:
        begin_quiescing(turn)
    elif answer is not None:
        placement = _running(turn)
        if same_pipelines(answer.plan, placement.plan) and not placement.followers:
            _stay(turn, answer.reason)
        else:
            begin_quiescing(turn)


def plan_refused_ahead(turn: Turn, signal: PlanRefused) -> None:
    """Ask for less, or train on with the pipelines there are."""
    if turn.transition.query != signal.query:
        return
    if wants_less(turn, signal):
        ask_ahead(turn)
    elif signal.reason is ErrorReason.NOT_ENOUGH_NODES:
        _stay(turn, signal.message)
    else:
        fail(turn, signal.reason, signal.message, signal.metadata)


def _stay(turn: Turn, reason: str) -> None:
    """The pipelines that finish the step are the new plan: nobody has to stop once more."""
    placement = replace(_running(turn), plan_before=None)
    turn.note(target=replace(placement, reason=reason))
    transition = turn.transition
    turn.change(placement=placement, transition=None, state=JobState.RUNNING, interrupted=None)
    turn.because("the whole pipelines go on as they are")
    tell_of_recovery(turn, transition)
    tell_of_fault_tolerance(turn, placement)


def _running(turn: Turn) -> Placement:
    placement = turn.run.placement
    if placement is None:
        raise AssertionError("a step is finished by pipelines that run")
    return placement
