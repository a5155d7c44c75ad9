"""What follows once all survivors have version T*: finish the step, plan, park, or fail."""

from dataclasses import replace

from planaria_coordinator.domain.checkpoint.checkpoint_protocol import fill_gaps
from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.job.end_of_training import begin_digesting
from planaria_coordinator.domain.job.ending import park
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.choose_plan import (
    choose_plan,
    pipelines_in_words,
)
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.replicas import (
    layers_without_replica,
    witness_record,
)
from planaria_coordinator.domain.recovery.activation import begin_activation
from planaria_coordinator.domain.recovery.finish_step import (
    KeptPipeline,
    finishing_placement,
    kept_pipelines,
)
from planaria_coordinator.domain.recovery.transition import Cause
from planaria_coordinator.domain.recovery.transition_completion import close_recovery
from planaria_coordinator.domain.recovery.unreachable_holders import layers_missing, state_is_whole


def version_reached(turn: Turn) -> None:
    """Go on with the change, now that every survivor has version T*."""
    fill_gaps(turn)
    kept = _kept_pipelines(turn)
    _note_redone(turn, kept)
    transition, run = turn.transition, turn.run
    version = transition.target_steps
    lost = layers_without_replica(transition.holdings, run.requirements.num_layers)
    if lost and version > run.initial_steps:
        layers_missing(turn, lost, version)
        return
    state_is_whole(turn)
    if version >= run.requirements.num_commits and not run.rests:
        steps = run.requirements.steps
        close_recovery(turn, f"all {steps} steps are committed: nothing is left to recover for")
        begin_digesting(turn)
    elif kept and run.in_force is not None:
        _finish_step(turn, run.in_force, kept)
    elif run.pause_wanted:
        if transition.history.cause in (Cause.NODE_LOST, Cause.ENGINE_LOST):
            close_recovery(turn, "a pause is wanted: the rest of the recovery follows after it")
        park(turn, JobState.PAUSED, f"the job is paused at step {version}")
    else:
        choose_plan(turn)  # or rest first


def _kept_pipelines(turn: Turn) -> tuple[KeptPipeline, ...]:
    run, transition = turn.run, turn.transition
    placement = run.in_force
    if transition.mode is not QuiesceMode.FENCE or placement is None:
        return ()
    if transition.target_steps >= run.requirements.num_commits:
        return ()  # no step is in flight any more
    record = witness_record(transition.reports, transition.target_steps)
    return kept_pipelines(
        placement,
        transition.reports,
        transition.holdings,
        transition.target_steps,
        run.requirements,
        parks_after_commit=record is not None and record.next_generation > 0,
    )


def _engines_of(turn: Turn, pipeline: KeptPipeline) -> tuple[str, ...]:
    placement = turn.run.in_force
    return placement.stage_engines[pipeline.index] if placement else ()


def _note_redone(turn: Turn, kept: tuple[KeptPipeline, ...]) -> None:
    """Count what was computed for the step in flight and is not kept: it is computed again.

    Engines that are fenced twice without an assignment in between report the same again.
    """
    transition, run = turn.transition, turn.run
    history = transition.history
    keepers = {e for pipeline in kept for e in _engines_of(turn, pipeline)}
    current = {
        engine_id: report
        for engine_id, report in transition.reports.items()
        if report.committed_steps == transition.target_steps
        and report.step_compute_seconds > 0
        and engine_id not in keepers
        and engine_id not in history.redone_by
    }
    if not current or transition.mode is QuiesceMode.AT_COMMIT:
        return
    finished = {m for report in current.values() for m in report.finished_microbatches}
    seconds = sum(report.step_compute_seconds for report in current.values())
    turn.note(
        history=replace(
            history,
            redone_by=(*history.redone_by, *current),
            redone_microbatches=history.redone_microbatches + len(finished),
            redone_seconds=history.redone_seconds + seconds,
        )
    )
    resumed = run.placement.resume_time if run.placement else None
    starts = [time for time in (run.last_commit_time, resumed) if time is not None]
    if starts and not history.redone_by and not kept:  # else that time was used well by some
        lost_seconds = (history.start_time - max(starts)).total_seconds()
        turn.change(
            time_account=run.time_account.move(Activity.PRODUCTIVE, Activity.REDONE, lost_seconds)
        )


def _finish_step(turn: Turn, placement: Placement, kept: tuple[KeptPipeline, ...]) -> None:
    """Give the step in flight to the healthy pipelines; nothing is planned, nothing is copied."""
    transition, run = turn.transition, turn.run
    finishing = finishing_placement(
        placement,
        kept,
        transition.holdings,
        run.engines,
        run.requirements,
        generation=transition.generation,
    )
    turn.note(target=finishing)
    num_all = run.requirements.num_microbatches
    num_kept = sum(len(pipeline.microbatches) for pipeline in kept)
    turn.emit(
        "step_finished_by",
        f"step {transition.target_steps} is finished by "
        f"{pipelines_in_words(finishing.plan.sizes)}: {num_kept} of {num_all} microbatches kept, "
        f"{num_all - num_kept} given to other pipelines",
        step=transition.target_steps,
        pipeline_sizes=list(finishing.plan.sizes),
        kept_microbatches=num_kept,
        lost_microbatches=num_all - num_kept,
        followers=sorted(finishing.followers),
    )
    begin_activation(turn)
