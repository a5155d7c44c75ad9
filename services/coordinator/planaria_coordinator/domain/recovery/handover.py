"""Changing the plan at a commit: protocol/handover.md.

Engines stage the next generation while training continues (STAGING), and all switch at one commit
(SWITCHING). Only engines whose assignment changes stop, for as long as activating it takes.
"""

from dataclasses import replace

from planaria_coordinator.domain.engines.directive import Quiesce, QuiesceMode, StagePlan, Switch
from planaria_coordinator.domain.engines.engine import Pending
from planaria_coordinator.domain.engines.links import Choice
from planaria_coordinator.domain.engines.outcome import Activated, Failure, FenceReport, Staged
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.planner_query import PlanAnswer
from planaria_coordinator.domain.placement.replicas import (
    choose_sources,
    holdings_of_placement,
    missing_layers,
)
from planaria_coordinator.domain.recovery.activation import (
    assignments,
    followers_of,
    note_activation,
    pass_seconds,
    store_address_of,
)
from planaria_coordinator.domain.recovery.broken_links import (
    choose_to_leave_out,
    is_likely,
    joining_nodes,
    leave_out,
    only_joining,
)
from planaria_coordinator.domain.recovery.copy_layers import emit_layers_copied, seconds_for_layers
from planaria_coordinator.domain.recovery.opening import (
    carried_history,
    open_again,
    open_online_change,
)
from planaria_coordinator.domain.recovery.transition import Phase
from planaria_coordinator.domain.recovery.transition_completion import complete

# -- staging -----------------------------------------------------------------------------------


def begin_staging(turn: Turn, running: Placement, answer: PlanAnswer) -> None:
    """Tell every engine of the next plan to stage its assignment while it trains on."""
    run = turn.run
    target = _grown_from(running, turn.target)
    holdings = holdings_of_placement(running, run.prepared_engines, run.requirements)
    missing = missing_layers(target.plan, target.stage_engines, holdings, run.requirements)
    num_layers = sum(len(layers) for layers in missing.values())
    turn.enter(
        Phase.STAGING,
        f"{len(target.engine_ids)} engines stage their assignments, {len(missing)} of them with "
        f"{num_layers} layers",
        plans_online=False,
        target=target,
    )
    copy_seconds = max(
        (seconds_for_layers(turn, layers) for layers in missing.values()), default=0.0
    )
    rebuild_seconds = turn.limits.directive_seconds + pass_seconds(turn, target) + copy_seconds
    command = StagePlan(
        pipelines=assignments(target, run.engines),
        store_address=store_address_of(target, run.engines),
        rebuild_timeout_seconds=rebuild_seconds,
        followers=followers_of(target, run.engines),
    )
    layers = choose_sources(missing, holdings, run.engines, answer.copies)
    for engine_id in sorted(target.engine_ids):
        mine = layers.get(engine_id)
        # One that many share is stored once.
        own = command if mine is None else replace(command, layers=mine)
        turn.send(run.engines[engine_id], own, allow_seconds=2 * rebuild_seconds)


def _grown_from(running: Placement, target: Placement) -> Placement:
    """Note which pipelines are those that run: they keep their communicators and their count."""
    unchanged = {
        (pipeline.stages, engine_ids): running.first_generation(index)
        for index, (pipeline, engine_ids) in enumerate(
            zip(running.plan.pipelines, running.stage_engines, strict=True)
        )
    }
    return replace(
        target,
        first_generations=tuple(
            unchanged.get((pipeline.stages, engine_ids), target.generation)
            for pipeline, engine_ids in zip(
                target.plan.pipelines, target.stage_engines, strict=True
            )
        ),
    )


def on_staged(turn: Turn, pending: Pending, outcome: Staged) -> None:
    """An engine has staged its assignment; when all have, they can switch."""
    turn.note(staged={**turn.transition.staged, pending.engine_id: outcome})
    _when_all_have_answered(turn)


def staging_failed(turn: Turn, failure: Failure) -> None:
    """An engine could not stage its assignment: only the attempt is lost.

    The others are waited for: when somebody has died, that becomes known meanwhile.
    """
    turn.note(failure=failure.message)
    _when_all_have_answered(turn)


def staging_overdue(turn: Turn, pending: Pending) -> None:
    """An engine that trains has not kept up; one that does nothing else does not answer at all."""
    running = turn.run.placement
    if running is not None and pending.engine_id in running.engine_ids:
        turn.settle(pending.directive_id)
        turn.note(failure=f"{pending.engine_id} has not staged its assignment in time")
        _when_all_have_answered(turn)
    else:
        turn.silent_engines[pending.engine_id] = "it has not staged its assignment in time"


def _when_all_have_answered(turn: Turn) -> None:
    if turn.is_awaiting("stage_plan"):
        return
    failure = turn.transition.failure
    choice = _choose_to_leave_out(turn) if failure else None
    if choice is not None and choice.is_possible and is_likely(turn.run, choice):
        leave_out(turn, choice)
    elif failure:
        history = carried_history(turn)
        history = replace(history, num_attempts=history.num_attempts + 1, staging_failed=True)
        open_online_change(turn, history, f"the change is made with all engines parked: {failure}")
    else:
        _begin_switching(turn)


def _choose_to_leave_out(turn: Turn) -> Choice | None:
    """Name nodes whose links fail the new plan: parking everybody would not mend them.

    Of those that train only with links that stall: the end of a connection may be that of a
    process, which is reported shortly. Nobody that trains makes way for nodes that join: where only
    the new plan needs the links, these are left out.
    """
    run = turn.run
    both = (*run.placements, turn.target)
    choice = choose_to_leave_out(turn, is_old=False, placements=both)
    if choice is None or (choice.is_possible and only_joining(run, choice)):
        return choice
    joining = joining_nodes(turn)
    if not joining or not turn.transition.begins_at_commit:
        return choose_to_leave_out(turn, placements=both)
    if choose_to_leave_out(turn, is_old=False) is not None:
        return choose_to_leave_out(turn)
    reason = f"{', '.join(joining)} cannot join: {choice.reason}"
    return Choice(nodes=joining, is_possible=True, reason=reason)


# -- switching ---------------------------------------------------------------------------------


def _begin_switching(turn: Turn) -> None:
    """Let everybody switch at the first commit at which all hold this.

    From here on only the engines know which plan is in force: the next one is stored next to the
    present one before anything is sent.
    """
    run, target = turn.run, turn.target
    _tell_of_layers(turn)
    running = run.placement.engine_ids if run.placement else frozenset()
    leaving = tuple(sorted(running - target.engine_ids))
    turn.change(candidate=target)
    turn.enter(
        Phase.SWITCHING,
        f"{len(target.engine_ids)} engines switch at the next commit",
        participants=(*sorted(target.engine_ids), *leaving),
        stopped=tuple(sorted(running)),
    )
    allow_seconds = turn.seconds_until_commit
    for engine_id in sorted(target.engine_ids):
        turn.send(run.engines[engine_id], Switch(), allow_seconds=allow_seconds)
    for engine_id in leaving:
        command = Quiesce(mode=QuiesceMode.AT_COMMIT)
        turn.send(run.engines[engine_id], command, allow_seconds=allow_seconds)


def _tell_of_layers(turn: Turn) -> None:
    copied = {e: o for e, o in turn.transition.staged.items() if o.copy_end_time is not None}
    if copied:
        ends = [o.copy_end_time for o in copied.values() if o.copy_end_time is not None]
        emit_layers_copied(
            turn,
            copied,
            turn.transition.copied_bytes,
            start_time=min(outcome.start_time for outcome in copied.values()),
            end_time=max(ends),
        )


def on_switched(turn: Turn, pending: Pending, outcome: Activated) -> None:
    """An engine has activated its assignment at the commit."""
    note_activation(turn, pending, outcome)
    _when_all_have_changed(turn)


def on_engine_left(turn: Turn, pending: Pending, report: FenceReport) -> None:
    """An engine without an assignment in the new plan is parked after the commit."""
    turn.note(reports={**turn.transition.reports, pending.engine_id: report})
    _when_all_have_changed(turn)


def switch_failed(turn: Turn, failure: Failure) -> None:
    """An engine failed to switch, and others may have switched: fence all to learn which."""
    history = replace(turn.transition.history, staging_failed=True)
    turn.note(history=history)
    open_again(
        turn, f"the change could not be completed: {failure.message}", mode=QuiesceMode.FENCE
    )


def _when_all_have_changed(turn: Turn) -> None:
    if turn.is_awaiting("switch", "quiesce"):
        return
    transition, target = turn.transition, turn.target
    steps = max(outcome.committed_steps for outcome in transition.activated.values())
    turn.note(target_steps=steps)
    turn.change(
        placement=target,
        candidate=None,
        left_idle=(),
        committed_steps=max(steps, turn.run.committed_steps),
    )
    turn.save_generation(transition.history.cause, plan=target.plan, reason=target.reason)
    complete(turn)
