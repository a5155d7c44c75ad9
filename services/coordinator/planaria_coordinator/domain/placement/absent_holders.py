"""Engines on nodes that are unreachable, not gone: what they hold may be needed yet.

A node that nobody reaches may come back with its engines and their layers. A job that has another
replica of each of these layers goes on without it; one that has not waits for it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from planaria_common.words import ranges_of
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import FenceReport
from planaria_coordinator.domain.job.requirements import NodeFacts, Requirements
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.replicas import (
    Holdings,
    holdings_of_placement,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentHolder:
    """An engine of a node that is unreachable, and what it held when it was heard last."""

    engine: Engine
    node: NodeFacts
    layers: tuple[int, ...]
    since: datetime
    is_back: bool = False
    """Its agent has come back with it, and it is not known yet whether the job needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedState:
    """Layers whose last holders are unreachable."""

    layers: tuple[int, ...]
    since: datetime
    deadline_seconds: float | None
    """Until when the job waits for them alone, on the monotonic clock; None: that is over."""


AbsentHolders = Mapping[str, AbsentHolder]
"""By engine."""


def holders_on(
    node: NodeFacts,
    engines: Iterable[Engine],
    placements: Iterable[Placement],
    copied: Holdings,
    requirements: Requirements,
    *,
    since: datetime,
) -> dict[str, AbsentHolder]:
    """Return the engines of a node that hold layers, as far as placements and copies tell."""
    own = {engine.id: engine for engine in engines if engine.node_id == node.node_id}
    found: dict[str, set[int]] = {}
    for holdings in (*(holdings_of_placement(p, own, requirements) for p in placements), copied):
        for engine_id in own.keys() & holdings.keys():
            found.setdefault(engine_id, set()).update(holdings[engine_id])
    return {
        engine_id: AbsentHolder(
            engine=own[engine_id], node=node, layers=tuple(sorted(layers)), since=since
        )
        for engine_id, layers in found.items()
        if layers
    }


def are_held(layers: Iterable[int], absent: AbsentHolders) -> bool:
    """Return whether each of some layers has a holder among those that are unreachable."""
    held = {layer for holder in absent.values() for layer in holder.layers}
    return held.issuperset(layers)


def holders_in_words(layers: Collection[int], absent: AbsentHolders) -> str:
    """Say where layers are that the job has nowhere else, and since when they are out of reach."""
    holders = [h for h in absent.values() if not set(layers).isdisjoint(h.layers)]
    nodes = sorted({holder.node.node_id for holder in holders})
    since = min(holder.since for holder in holders)
    noun = "layer" if len(layers) == 1 else "layers"
    verb = "is" if len(layers) == 1 else "are"
    return (
        f"{noun} {ranges_of(layers)} {verb} only on {', '.join(nodes)}, which cannot be reached "
        f"since {since.isoformat(timespec='seconds')}"
    )


def engines_of_another_history(
    reports: Mapping[str, FenceReport], returned: Collection[str], members: Collection[str]
) -> frozenset[str]:
    """Return the engines that came back with layers which may have other bits than the job's.

    While an engine was out of reach, the others may have redone the step that it had committed: in
    fast mode their sums are rounded differently. So its layers count only if its last commit is the
    very one of the survivors. An engine of the placement in force cannot have been left behind so:
    whatever the others did since, they would have done in another placement. It may be one step
    ahead (a witness), or one late (it rolls forward).

    Args:
        reports: of all that were fenced.
        returned: those that have been out of reach.
        members: those of the placements that may be in force.
    """
    others = {e: r for e, r in reports.items() if e in returned and e not in members}
    if not others:
        return frozenset()
    judges = {e: r for e, r in reports.items() if e in members} or reports
    newest = max(map(_progress, judges.values()))
    truths = {_last_commit(r) for r in judges.values() if _progress(r)[0] == newest[0]}
    if judges is reports:  # none of the placement lives: the newest of what is left
        truths = {_last_commit(r) for r in judges.values() if _progress(r) == newest}
    return frozenset(e for e, report in others.items() if _last_commit(report) not in truths)


def _progress(report: FenceReport) -> tuple[int, int]:
    record = report.last_commit
    return report.committed_steps, record.generation if record else 0


def _last_commit(report: FenceReport) -> tuple[int, int, int]:
    record = report.last_commit
    step, generation = (record.step, record.generation) if record else (-1, 0)
    return report.committed_steps, step, generation
