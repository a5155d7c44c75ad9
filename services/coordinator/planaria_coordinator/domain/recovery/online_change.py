"""A change that is planned while engines train: how it goes on when the planner has answered."""

from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import PlanRefused
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.job.waiting import set_back
from planaria_coordinator.domain.placement.ask_planner import ask_early, nodes_to_plan_on
from planaria_coordinator.domain.placement.choose_plan import adopt_plan, wants_less
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.plan import same_pipelines
from planaria_coordinator.domain.recovery.fencing import begin_quiescing
from planaria_coordinator.domain.recovery.handover import begin_staging
from planaria_coordinator.domain.recovery.opening import (
    carried_history,
    open_again,
    open_transition,
)
from planaria_coordinator.domain.recovery.transition import Cause, Phase
from planaria_coordinator.domain.recovery.transition_completion import (
    report_fault_tolerance,
    report_recovery,
)


def advance_online_change(turn: Turn) -> None:
    """Take the next step of a change that lets engines train, or give way to what is wanted more.

    A pause, or the end of the job, needs everyone parked at one version and no new plan.
    """
    transition = turn.run.transition
    if transition is None:
        return
    is_over = turn.run.committed_steps >= turn.run.requirements.num_commits
    gives_way = turn.run.pause_wanted or is_over
    if transition.plans_online:
        if gives_way:
            begin_quiescing(turn)
        else:
            _advance_when_planned(turn)
    elif transition.phase is Phase.STAGING and gives_way:
        # A staged assignment must not come into force at this commit: open a new generation.
        reason = "the last step is committed" if is_over else "pause is wanted"
        open_transition(turn, carried_history(turn), reason, mode=QuiesceMode.AT_COMMIT)
    elif transition.phase is Phase.SWITCHING and is_over:
        open_again(turn, "the last step is committed", counts=False)


def _advance_when_planned(turn: Turn) -> None:
    transition, placement = turn.transition, _running(turn)
    answer = transition.answer
    if transition.query is None:
        stay(turn, "too few nodes are left to plan on")
    elif answer is None:
        return
    elif same_pipelines(answer.plan, placement.plan) and not placement.followers:
        stay(turn, answer.reason)
    elif transition.history.staging_failed:
        begin_quiescing(turn)
    elif adopt_plan(turn, answer):
        begin_staging(turn, placement, answer)
    else:
        stay(turn, "the planner's answer makes no sense")


def online_plan_refused(turn: Turn, signal: PlanRefused) -> None:
    """Ask for less, or train on with the pipelines there are."""
    if turn.transition.query != signal.query:
        return
    if wants_less(turn, signal):
        ask_early(turn)
    elif signal.reason is ErrorReason.NOT_ENOUGH_NODES:
        if (
            turn.transition.history.cause is Cause.NODE_DRAINED
        ):  # else it is asked for again at once
            needed = max(turn.run.nodes_per_replica, len(signal.query.nodes) + 1)
            turn.change(nodes_per_replica=needed)
        stay(turn, signal.message)
    else:
        if turn.transition.history.cause is not Cause.NODE_JOINED:
            set_back(turn, signal.message)  # else it is asked for again at once
        stay(turn, signal.message)


def stay(turn: Turn, reason: str) -> None:
    """The pipelines that run are the new plan: nobody has to change.

    Engines that it leaves idle are noted: offered again, they would be left idle again.
    """
    placement = _running(turn)
    if placement.plan_before is not None:
        placement = replace(placement, plan_before=None)
    turn.note(target=replace(placement, reason=reason), target_steps=turn.run.committed_steps)
    transition = turn.transition
    query = transition.query
    asked_for = [n.node_id for n in query.nodes] if query else nodes_to_plan_on(turn.run)
    idle = set(asked_for) - set(placement.plan.node_ids)
    engines = turn.run.prepared_engines.values()
    turn.change(
        placement=placement,
        left_idle=tuple(sorted(engine.id for engine in engines if engine.node_id in idle)),
        transition=None,
        state=JobState.RUNNING,
        interrupted=None,
    )
    turn.because("the pipelines continue as they are")
    if transition.begins_at_commit:
        turn.emit("plan_kept", f"training continues as it was: {reason}")
        return
    report_recovery(turn, transition)
    report_fault_tolerance(turn, placement)


def _running(turn: Turn) -> Placement:
    placement = turn.run.placement
    if placement is None:
        raise AssertionError("an online change needs pipelines that run")
    return placement
