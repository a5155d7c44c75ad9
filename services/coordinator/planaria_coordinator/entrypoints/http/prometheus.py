"""/metrics: what the coordinator knows of its jobs and nodes, for Prometheus."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from planaria_common.version import package_version
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.application.statistics import Statistics, Totals
from planaria_coordinator.domain.engines.node import Node, NodeState
from planaria_coordinator.domain.job.job import Job, JobState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "planaria_coordinator"
_FIGURES: Final = {
    "detect_seconds": "Seconds from the fault until the loss was noticed.",
    "fence_seconds": "Seconds from the fault until the last survivor was fenced.",
    "resume_seconds": "Seconds from the fault until all survivors took part in the step again.",
    "regrow_seconds": "Seconds from the fault until every survivor had a pipeline again.",
    "idle_seconds": "Seconds in which nobody computed.",
    "lost_seconds": "Seconds that steps took longer because of a change, where that is known.",
}
"""Totals of the figures of recoveries, by their names in REST."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # registries hash their collectors
class Snapshot(Collector):
    """What is known at one moment: the metrics follow from it.

    Attributes:
        now: the moment.
        totals: of everything stored.
        jobs: those that have not ended; the others get no series of their own.
        nodes: the nodes.
    """

    now: datetime
    totals: Totals
    jobs: Sequence[Job]
    nodes: Sequence[Node]

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily(
            _PREFIX, "The coordinator's version.", value={"version": package_version()}
        )
        yield from self._totals()
        yield from self._nodes()
        yield from self._jobs()

    def _totals(self) -> Iterable[Metric]:
        jobs = {state.value: self.totals.jobs.get(state, 0) for state in JobState}
        yield _gauge("jobs", "Jobs by state.", "state", jobs)
        yield self._recoveries("recoveries", "Changes from one plan to the next.", "count")
        for name, text in _FIGURES.items():
            yield self._recoveries(f"recovery_{name}", text, name)
        yield self._recoveries(
            "recovery_copied_bytes", "Bytes copied between engines.", "copied_bytes"
        )
        yield self._recoveries(
            "redone_microbatches",
            "Microbatches that a survivor had computed and that were computed again.",
            "redone_microbatches",
        )
        yield CounterMetricFamily(f"{_PREFIX}_events", "Events.", value=self.totals.num_events)

    def _recoveries(self, name: str, text: str, attribute: str) -> CounterMetricFamily:
        counter = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=["cause"])
        for cause, totals in self.totals.recoveries.items():
            counter.add_metric([cause], getattr(totals, attribute))
        return counter

    def _nodes(self) -> Iterable[Metric]:
        counts = Counter(node.state for node in self.nodes)
        by_state = {state.value: counts[state] for state in NodeState}
        yield _gauge("nodes", "Nodes by state.", "state", by_state)
        ages = {n.id: (self.now - n.heartbeat_time).total_seconds() for n in self.nodes}
        yield _gauge("heartbeat_age_seconds", "Time since the last heartbeat.", "node_id", ages)

    def _jobs(self) -> Iterable[Metric]:
        for name, text, attribute in (
            ("job_step", "Number of committed steps.", "step"),
            ("job_loss", "Mean loss of the last committed step.", "loss"),
            ("job_evaluation_loss", "Mean loss of the newest evaluation.", "evaluation_loss"),
            (
                "job_skipped_steps",
                "Number of committed steps that changed no parameter.",
                "num_skipped_steps",
            ),
            ("job_generation", "Generation of the plan.", "generation"),
            (
                "job_tokens_per_second",
                "Tokens per second over the last steps.",
                "tokens_per_second",
            ),
            (
                "job_goodput_ratio",
                "Share of the time since the first step began in which the job trained.",
                "goodput",
            ),
            ("job_fault_tolerance", "Nodes that may be lost at once now.", "fault_tolerance"),
        ):
            yield _gauge(
                name, text, "job_id", {job.id: getattr(job, attribute) for job in self.jobs}
            )


def _gauge(
    name: str, text: str, label: str, values: Mapping[str, float | None]
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=[label])
    for value_of, value in values.items():
        if value is not None:
            gauge.add_metric([value_of], value)
    return gauge


async def take_snapshot(
    coordinator: Coordinator, statistics: Statistics, now: datetime
) -> Snapshot:
    """Ask for everything that the metrics show."""
    return Snapshot(
        now=now,
        totals=await statistics.totals(),
        jobs=coordinator.jobs.unfinished(),
        nodes=coordinator.cluster.all(),
    )


def render(snapshot: Snapshot) -> bytes:
    """Return a snapshot, and the use of this process, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(snapshot)
    ProcessCollector(namespace=_PREFIX, registry=registry)
    return generate_latest(registry)
