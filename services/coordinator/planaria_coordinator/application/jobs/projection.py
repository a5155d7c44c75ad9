"""A job as users see it, from the state of its machine and its last steps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from planaria_common.words import names_of
from planaria_coordinator.domain.job.job import Condition, Job, JobState, StepMetrics
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.waiting import waiting_reason

NUM_STEPS_FOR_RATE = 20


def project(job: Job, run: JobRun, newest: Sequence[StepMetrics], now: datetime) -> Job:
    """Return the job as it is now.

    Args:
        job: what never changes: its id, name and file.
        run: the state of its machine.
        newest: its newest committed steps, the oldest of them first.
        now: the time.
    """
    running = newest and run.state in (JobState.RUNNING, JobState.RECOVERING, JobState.PAUSED)
    holds_state = run.placement is not None and run.state is not JobState.WAITING
    totals = run.time_account.totals(now)
    return replace(
        job,
        state=run.state,
        step=run.requirements.trained_steps(run.committed_steps),
        loss=next((each.loss for each in reversed(newest) if each.loss is not None), job.loss),
        evaluation_loss=None if run.evaluation is None else run.evaluation.loss,
        evaluation_step=None if run.evaluation is None else run.evaluation.step,
        generation=run.generation,
        tokens_per_second=tokens_per_second(newest) if running else 0.0,
        goodput=run.time_account.goodput(now, run.start_time),
        final_digest=run.final_digest,
        error=run.error,
        start_time=run.start_time,
        end_time=run.end_time,
        fault_tolerance=run.placement.plan.fault_tolerance
        if run.placement is not None and holds_state
        else 0,
        waiting_reason=waiting_reason(run),
        num_skipped_steps=run.num_skipped_steps,
        conditions=() if run.state.is_terminal else _nodes_left_out(run),
        time_seconds={str(name): seconds for name, seconds in totals.items()},
    )


def tokens_per_second(newest: Sequence[StepMetrics]) -> float:
    """Return the rate over some steps, by the time each of them took."""
    seconds = sum(metrics.step_seconds for metrics in newest)
    return sum(metrics.num_tokens for metrics in newest) / seconds if seconds > 0 else 0.0


def _nodes_left_out(run: JobRun) -> tuple[Condition, ...]:
    """Return one condition for all nodes that the job does without for the same reason."""
    reasons = dict.fromkeys(run.left_out.values())
    return tuple(
        Condition(
            type="NODES_LEFT_OUT",
            message=f"the job does without {names_of(node_ids)}: {reason}",
            node_ids=node_ids,
            since_time=min(run.cordoned[node_id].since_time for node_id in node_ids),
        )
        for reason in reasons
        if (node_ids := tuple(sorted(n for n, why in run.left_out.items() if why == reason)))
    )


def nodes_silent(since: Mapping[str, datetime]) -> Condition:
    """Return the condition of a job some of whose nodes are silent.

    Args:
        since: by node, when it was last heard.
    """
    node_ids = tuple(sorted(since))
    verb = "says" if len(node_ids) == 1 else "say"
    return Condition(
        type="NODES_SILENT",
        message=f"{names_of(node_ids)} {verb} nothing, and cannot be taken to be lost",
        node_ids=node_ids,
        since_time=min(since.values()),
    )
