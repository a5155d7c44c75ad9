"""What a coordinator does for checkpoints, for tests of engines."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planaria.api.worker.v1.directive_pb2 import SealCheckpoint, WriteCheckpoint
from planaria.api.worker.v1.report_pb2 import CheckpointReport, DirectiveResult, LayerWritten
from support.engines.cluster import EngineCluster
from support.engines.small_plans import JobFiles


def checkpointed(job: JobFiles, path: Path, *, every_steps: int = 2, **fields: Any) -> JobFiles:
    """The same job, with checkpoints."""
    checkpoint = {"path": str(path), "every_steps": every_steps, **fields}
    return replace(job, spec={**job.spec, "checkpoint": checkpoint})


def beginning_from(job: JobFiles, path: Path, **fields: Any) -> JobFiles:
    """The same job, from another base."""
    spec: Mapping[str, Any] = {**job.spec, "init_from": str(path), **fields}
    return replace(job, spec=spec)


def reports(cluster: EngineCluster, version: int) -> dict[str, list[CheckpointReport]]:
    """What each engine has said of a version."""
    return {
        name: [
            event.checkpoint_report
            for event in engine.events
            if event.HasField("checkpoint_report") and event.checkpoint_report.version == version
        ]
        for name, engine in cluster.engines.items()
    }


def written(cluster: EngineCluster, version: int) -> dict[int, LayerWritten]:
    """The layers of a version that are written, by number."""
    return {
        report.written.layer: report.written
        for said in reports(cluster, version).values()
        for report in said
        if report.HasField("written")
    }


def wait_until_written(cluster: EngineCluster, version: int) -> list[LayerWritten]:
    """Waits until every layer of a version is."""

    def found() -> list[LayerWritten] | None:
        layers = written(cluster, version)
        return list(layers.values()) if len(layers) == cluster.job.num_layers else None

    return cluster.wait_for(f"layers of version {version}", found)


def wait_for_failure(cluster: EngineCluster, version: int) -> str:
    """Waits until an engine says that it does not write its part; returns why."""

    def found() -> str | None:
        said = [report for all_ in reports(cluster, version).values() for report in all_]
        return next((r.failure.message for r in said if r.HasField("failure")), None)

    return cluster.wait_for(f"failure of version {version}", found)


def write(cluster: EngineCluster, name: str, version: int, layers: list[int]) -> DirectiveResult:
    """Has an engine write layers that nobody else writes."""
    return cluster.ask(name, write_checkpoint=WriteCheckpoint(version=version, layers=layers))


def seal(
    cluster: EngineCluster, name: str, version: int, layers: list[LayerWritten]
) -> DirectiveResult:
    """Has an engine make a checkpoint complete."""
    return cluster.ask(name, seal_checkpoint=SealCheckpoint(version=version, layers=layers))
