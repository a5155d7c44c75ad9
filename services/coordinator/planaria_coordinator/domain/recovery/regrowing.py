"""The second half of a recovery: engines that lost their pipeline are assigned again, at a commit.

Healthy pipelines finish the step in flight meanwhile. The planner is asked at once, and engines
receive nothing before its answer.
"""

from dataclasses import replace

from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.recovery.opening import carried_history, open_online_change
from planaria_coordinator.domain.recovery.recovery_costs import phases_of, stop_times
from planaria_coordinator.domain.recovery.recovery_figures import idle_seconds


def begin_regrowing(turn: Turn) -> None:
    """All engines of the finishing plan have activated: open the next generation."""
    transition = turn.transition
    placement = turn.run.placement
    if placement is None:
        raise AssertionError("a step is finished by pipelines that run")
    resumed = [outcome.resume_time for outcome in transition.activated.values()]
    first, last = min(resumed), max(resumed)
    turn.account(Activity.PRODUCTIVE, at=last)
    _credit_computing_engines(turn)
    turn.change(
        placement=replace(placement, resume_time=first),
        start_time=turn.run.start_time or first,
    )
    stopped = stop_times(transition)
    history = replace(
        carried_history(turn),
        stop_times={e: time for e, time in stopped.items() if e in turn.run.engines},
        resume_time=last,
        idle_seconds=idle_seconds(transition),
        phases=phases_of(transition),
    )
    open_online_change(
        turn, history, f"step {transition.target_steps} is being finished, a new plan follows"
    )


def _credit_computing_engines(turn: Turn) -> None:
    """Only engines of broken pipelines were idle: the others' share of that time was not lost."""
    placement, before = turn.run.placement, turn.transition.time_account_before
    if placement is None or before is None:
        return
    num_computing = sum(len(pipeline) for pipeline in placement.stage_engines)
    share = num_computing / len(placement.engine_ids)
    time_account = turn.run.time_account
    for activity, seconds in tuple(time_account.seconds.items()):
        if activity is not Activity.PRODUCTIVE:
            idle_seconds = seconds - before.seconds.get(activity, 0.0)
            time_account = time_account.move(activity, Activity.PRODUCTIVE, share * idle_seconds)
    turn.change(time_account=time_account)
