"""Writes a job's committed steps to TensorBoard or Weights & Biases.

    with planaria.Client() as client:
        track(client, client.get_job("job-1"))

It reads what the coordinator has stored, where each step is exactly once whatever failed; so it may
run anywhere, be started late, stopped, and started again. Training knows nothing of it.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

from planaria.client import Client
from planaria.errors import ConflictError
from planaria.job import MetricsSpec
from planaria.job_file import parse_job
from planaria.models import Job, StepMetrics

_NAMES = (
    "loss",
    "gradient_norm",
    "learning_rate",
    "tokens_per_second",
    "model_flops_utilization",
    "step_seconds",
)
"""Of training; a step that trained nothing tells only its evaluation."""


class Tracker(Protocol):
    """Takes a job's steps, the oldest first."""

    def write(self, step: StepMetrics) -> None: ...

    def close(self) -> None: ...


def track(client: Client, job: Job) -> int:
    """Write every step of a job to what its file names under `metrics`, until it has ended.

    Returns:
        The number of steps that were written.

    Raises:
        ConflictError: a package is not installed; names the command that installs it.
    """
    metrics = parse_job(job.spec, source=job.id).metrics
    with ExitStack() as stack:
        trackers = [stack.enter_context(closing(t)) for t in open_trackers(metrics, job)]
        if not trackers:
            return 0
        count = 0
        for step in client.steps(job.id, follow=True):
            for tracker in trackers:
                tracker.write(step)
            count += 1
        return count


def open_trackers(metrics: MetricsSpec | None, job: Job) -> Sequence[Tracker]:
    """Open what `metrics` of a job file names.

    Raises:
        ConflictError: a package is not installed; names the command that installs it.
    """
    require_installed(metrics)
    trackers: list[Tracker] = []
    if metrics is not None and metrics.tensorboard is not None:
        trackers.append(TensorBoard(Path(metrics.tensorboard) / job.id))
    if metrics is not None and metrics.wandb is not None:
        trackers.append(WeightsAndBiases(metrics.wandb.project, job))
    return trackers


def require_installed(metrics: MetricsSpec | None) -> None:
    """Check that the packages are there.

    Raises:
        ConflictError: one is not.
    """
    if metrics is not None and metrics.tensorboard is not None:
        _import("tensorboard.summary", "tensorboard")
    if metrics is not None and metrics.wandb is not None:
        _import("wandb", "wandb")


class TensorBoard:
    """Event files in a folder of the job's own; those of an earlier start are replaced."""

    def __init__(self, folder: Path) -> None:
        summary = _import("tensorboard.summary", "tensorboard")
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = summary.Writer(str(folder))

    def write(self, step: StepMetrics) -> None:
        time = step.commit_time.timestamp() if step.commit_time is not None else None
        for name, value in _values(step):
            self._writer.add_scalar(name, value, step.step, wall_time=time)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run with the job's id; a later start continues where an earlier one ended."""

    def __init__(self, project: str, job: Job) -> None:
        wandb = _import("wandb", "wandb")
        self._run = wandb.init(
            project=project, id=job.id, name=job.name, config=dict(job.spec), resume="allow"
        )
        self._first_step: int = self._run.step

    def write(self, step: StepMetrics) -> None:
        if step.step >= self._first_step:
            self._run.log(dict(_values(step)), step=step.step)

    def close(self) -> None:
        self._run.finish()


def _values(step: StepMetrics) -> Iterator[tuple[str, float]]:
    names = ("evaluation_loss",) if step.loss is None else ("evaluation_loss", *_NAMES)
    for name in names:
        value = getattr(step, name)
        if value is not None:
            yield name, value


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConflictError(
            f"metrics.{extra}: {extra} is not installed here: pip install 'planaria[{extra}]'",
            reason="UNAVAILABLE",
            metadata={"part": extra},
        ) from None
