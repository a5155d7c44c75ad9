"""What is stored: events, metrics, log lines and directives."""

from planaria_coordinator.domain.engines.directive import Command, CommitRecord, Directive, Stop
from planaria_coordinator.domain.job.event import EventDraft
from planaria_coordinator.domain.job.job import LogLine, StepMetrics
from unit.coordinator_edge.fakes import NOON

RECORD = CommitRecord(step=3, generation=2, gradient_norm=0.5, loss=2.5, num_tokens=64)


def draft(number: int, job_id: str = "job-1") -> EventDraft:
    return EventDraft(time=NOON, type="happened", message=str(number), job_id=job_id)


def metrics(step: int) -> StepMetrics:
    return StepMetrics(
        job_id="job-1",
        step=step,
        loss=1 / 3,
        gradient_norm=0.1,
        learning_rate=3e-4,
        num_tokens=64,
        step_seconds=0.25,
        generation=1,
        commit_time=NOON,
    )


def line(number: int, job_id: str = "job-1") -> LogLine:
    return LogLine(job_id=job_id, engine_id="e", time=NOON, text=f"line {number}")


def directive(number: int, command: Command | None = None) -> Directive:
    return Directive(
        id=f"directive-{number}",
        job_id="job-1",
        generation=2,
        engine_id="job-1/a/0/1",
        node_id="a",
        command=command or Stop(reason="done"),
    )
