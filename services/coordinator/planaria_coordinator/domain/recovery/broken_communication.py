"""Engines that cannot reach each other, or hang, with nobody known to be lost."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.links import Choice
from planaria_coordinator.domain.job.job_run import Disturbance
from planaria_coordinator.domain.job.signals import (
    EngineDisturbed,
    EnginesStuck,
)
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.job.waiting import set_back
from planaria_coordinator.domain.recovery.broken_links import (
    choose_joining,
    choose_to_leave_out,
    is_likely,
    leave_out,
)
from planaria_coordinator.domain.recovery.lost_engines import (
    MAX_MESSAGE_CHARACTERS,
    account_detection,
    fault_history,
)
from planaria_coordinator.domain.recovery.opening import (
    open_again,
    open_transition,
)
from planaria_coordinator.domain.recovery.transition import Phase


def engines_stuck(turn: Turn, signal: EnginesStuck) -> None:
    """Fence the job: the engine that hangs will not answer."""
    if turn.run.trains:
        since = turn.now.time - timedelta(seconds=signal.seconds)
        fence_everybody(turn, since, f"no engine has advanced for {signal.seconds:.1f} s")


def fence_everybody(turn: Turn, fault_time: datetime, reason: str) -> None:
    """Fence every engine although none is known to be lost."""
    account_detection(turn, fault_time)
    if turn.run.transition is None or turn.transition.phase is Phase.PREPARING:
        open_transition(turn, fault_history(turn, fault_time), reason)
    else:
        open_again(turn, reason, counts=False)


def engine_disturbed(turn: Turn, signal: EngineDisturbed) -> None:
    """Note that an engine's communicators broke; wait shortly for the report of a death."""
    run = turn.run
    if run.placement is None or signal.engine_id not in run.required_engines:
        return
    if signal.generation < run.placement.generation:
        return
    if run.transition is not None and run.transition.phase is Phase.ACTIVATING:
        turn.note(failure=signal.message)
    elif run.trains and run.disturbance is None:
        # Mostly an engine has died and the next message says which: one recovery covers both.
        disturbance = Disturbance(
            engine_id=signal.engine_id,
            message=signal.message,
            fault_time=signal.fault_time,
            deadline_seconds=turn.now.seconds + turn.limits.disturbance_seconds,
        )
        turn.note_run(disturbance=disturbance)


def restart_disturbance(turn: Turn) -> None:
    """Count from now on: the coordinator has started again, with another clock."""
    links = tuple(replace(link, since_seconds=turn.now.seconds) for link in turn.run.failed_links)
    turn.note_run(failed_links=links)
    disturbance = turn.run.disturbance
    if disturbance is not None:
        deadline_seconds = turn.now.seconds + turn.limits.disturbance_seconds
        restarted = replace(disturbance, deadline_seconds=deadline_seconds)
        turn.note_run(disturbance=restarted)


def disturbance_overdue(turn: Turn, absent_nodes: Collection[str]) -> None:
    """Fence and rebuild: communicators broke, and no engine was reported lost in time.

    Where engines say which links failed, nodes are left out. If that would be many, groups are
    built again first.
    """
    disturbance = turn.run.disturbance
    if disturbance is None or disturbance.deadline_seconds > turn.now.seconds:
        return
    if not turn.run.trains:
        turn.change(disturbance=None)
        return
    choice = choose_to_leave_out(turn, absent_nodes=absent_nodes)
    if choice is not None and choice.is_possible:
        if is_likely(turn.run, choice) or turn.run.num_disturbances:
            leave_out(turn, choice)
            turn.change(disturbance=None)
            return
        choice = None
    turn.change(disturbance=None, num_disturbances=turn.run.num_disturbances + 1)
    if choice is not None:
        set_back(turn, _cannot_go_on_without(choice))
    elif turn.run.num_disturbances > turn.limits.num_attempts:
        set_back(turn, f"communication broke again and again: {disturbance.message}")
    turn.emit(
        "communication_broke",
        f"{disturbance.engine_id} cannot continue: {disturbance.message[:MAX_MESSAGE_CHARACTERS]}",
        engine_id=disturbance.engine_id,
    )
    reason = f"communication broke at {disturbance.engine_id}"
    fence_everybody(turn, disturbance.fault_time, reason)


def retry(turn: Turn) -> None:
    """Begin the transition again when it failed with everyone alive; after a few times, rest first.

    Where engines say which links failed, a node is left out instead, many only at the last try; so
    are nodes that join, where it would be no plan or the last try, and the others can go on without
    them.

    Groups that could not be made for the first time stop no pipeline that finishes a step: mostly
    somebody has died whose loss is reported later. If it was something else, everyone is parked.
    """
    reason, turn.retry_reason = turn.retry_reason, ""
    if not reason or turn.run.transition is None:
        return
    is_last_try = turn.transition.history.num_attempts + 1 >= turn.limits.num_attempts
    problem = f"{turn.limits.num_attempts} attempts failed: {reason}" if is_last_try else ""
    choice = choose_to_leave_out(turn, is_last_try=is_last_try)
    if choice is not None and not choice.is_possible:
        problem, choice = _cannot_go_on_without(choice), None
    elif choice is not None and not (is_last_try or is_likely(turn.run, choice)):
        choice = None
    if choice is None and problem:
        choice = choose_joining(turn, problem)
    if choice is not None:
        leave_out(turn, choice)
    elif problem:
        set_back(turn, problem)
        open_again(turn, reason)
    else:
        transition = turn.transition
        goes_on = (
            transition.finishes_step
            and not transition.is_at_fault
            and not transition.history.num_attempts
            and not turn.run.pause_wanted
        )
        open_again(turn, reason, mode=QuiesceMode.FENCE if goes_on else QuiesceMode.IMMEDIATE)


def _cannot_go_on_without(choice: Choice) -> str:
    return f"{choice.reason}, and the job has no plan without {', '.join(choice.nodes)}"
