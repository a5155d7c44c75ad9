"""Have every engine of a plan activate its assignment at once."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import (
    Activate,
    FollowerAssignment,
    PipelineAssignment,
    StageAssignment,
)
from planaria_coordinator.domain.engines.engine import Engine, Pending
from planaria_coordinator.domain.engines.outcome import Activated, Failure, FenceReport
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.recovery.transition import Phase


def begin_activation(turn: Turn) -> None:
    """Tell every engine of the plan, and every follower, to activate its assignment."""
    transition, target = turn.transition, turn.target
    turn.enter(Phase.ACTIVATING, f"{len(target.engine_ids)} engines activate their assignments")
    turn.account_phase(Activity.REBUILD)
    turn.change(placement=target, candidate=None, left_idle=())
    turn.save_generation(transition.history.cause, plan=target.plan, reason=target.reason)
    rebuild_seconds = turn.limits.directive_seconds
    if target.step_microbatches:
        rebuild_seconds += pass_seconds(turn, target)
    engines = turn.run.engines
    command = Activate(
        pipelines=assignments(target, engines),
        store_address=store_address_of(target, engines),
        rebuild_timeout_seconds=rebuild_seconds,
        followers=followers_of(target, engines),
        committed_steps=transition.target_steps,
        kept_groups=idle_groups(transition.reports.values()),
    )
    for engine_id in sorted(target.engine_ids):
        # An engine that waits in vain for others says so after the rebuild's timeout: only one
        # that is silent for longer than that is itself at fault.
        allow_seconds = 2 * rebuild_seconds + _copying_seconds(turn, engine_id)
        turn.send(engines[engine_id], command, allow_seconds=allow_seconds)


def idle_groups(reports: Iterable[FenceReport]) -> tuple[str, ...]:
    """Return the groups that all their members have reported idle, in order."""
    named = Counter(group for report in reports for group in report.idle_groups)
    return tuple(sorted(group.id for group, times in named.items() if times == group.size))


def pass_seconds(turn: Turn, target: Placement) -> float:
    """Return how much longer building groups may take where engines compute and join after a pass.

    If no step has been measured and none is predicted (a custom scheduler may give no time), a pass
    is waited for like a step's end.
    """
    step_seconds = max(turn.run.last_step_seconds, target.plan.iteration_seconds)
    return 2 * step_seconds or turn.seconds_until_commit


def _copying_seconds(turn: Turn, engine_id: str) -> float:
    """Return how long an engine may still copy for a checkpoint: it activates after that."""
    run = turn.run
    copies = any(checkpoint.layers_of(engine_id) for checkpoint in run.checkpoints.values())
    return run.requirements.checkpoint_deadline_seconds if copies else 0.0


def store_address_of(target: Placement, engines: Mapping[str, Engine]) -> str:
    """Return where the engines of a placement meet: at its first."""
    return engines[target.stage_engines[0][0]].store_address


def followers_of(
    target: Placement, engines: Mapping[str, Engine]
) -> tuple[FollowerAssignment, ...]:
    """Return what each follower of a placement is told."""
    return tuple(
        FollowerAssignment(
            engine_id=engine_id, data_address=engines[engine_id].data_address, layers=layers
        )
        for engine_id, layers in sorted(target.followers.items())
    )


def assignments(target: Placement, engines: Mapping[str, Engine]) -> tuple[PipelineAssignment, ...]:
    """Return the stages of a placement's pipelines, with whom they are and what they compute."""
    pipelines = zip(target.plan.pipelines, target.stage_engines, strict=True)
    return tuple(
        PipelineAssignment(
            stages=tuple(
                StageAssignment(
                    engine_id=engine_id,
                    data_address=engines[engine_id].data_address,
                    first_layer=stage.first_layer,
                    num_layers=stage.num_layers,
                )
                for stage, engine_id in zip(pipeline.stages, engine_ids, strict=True)
            ),
            microbatches=pipeline.microbatches,
            step_microbatches=target.step_microbatches[index] if target.step_microbatches else (),
            keeps_step=target.first_generation(index) < target.generation,
        )
        for index, (pipeline, engine_ids) in enumerate(pipelines)
    )


def on_activated(turn: Turn, pending: Pending, outcome: Activated) -> bool:
    """An engine has activated its assignment. Return whether all have."""
    note_activation(turn, pending, outcome)
    return _all_answered(turn)


def note_activation(turn: Turn, pending: Pending, outcome: Activated) -> None:
    """What an engine computes from now on is new work."""
    history = turn.transition.history
    others = tuple(engine_id for engine_id in history.redone_by if engine_id != pending.engine_id)
    turn.note(
        activated={**turn.transition.activated, pending.engine_id: outcome},
        history=replace(history, redone_by=others, has_activated=True),
    )


def activation_failed(turn: Turn, failure: Failure) -> None:
    """Some engine could not activate: begin again when all have answered."""
    is_own = failure.reason is not ErrorReason.UNAVAILABLE
    turn.note(failure=failure.message, is_at_fault=turn.transition.is_at_fault or is_own)
    _all_answered(turn)


def _all_answered(turn: Turn) -> bool:
    if turn.is_awaiting("activate"):
        return False
    turn.retry_reason = turn.transition.failure
    return not turn.transition.failure
