"""Which engine holds which layers in which version: protocol/job.md, rules 3 and 4."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from planaria_coordinator.domain.engines.directive import CommitRecord, LayerSource
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import FenceReport, HeldLayer
from planaria_coordinator.domain.job.requirements import Requirements
from planaria_coordinator.domain.placement.placement import Placement, StageEngines
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.placement.planner_query import Holding, LayerCopy

MAX_SOURCES = 4
"""So many addresses are named for a layer: one to fetch from, the others in case it dies."""

Holdings = Mapping[str, tuple[int, ...]]
"""By engine: the layers it holds in version T*."""


def target_steps(reports: Mapping[str, FenceReport]) -> int:
    """Return T*: the largest number of committed steps reported."""
    return max((report.committed_steps for report in reports.values()), default=0)


def witness_record(reports: Mapping[str, FenceReport], target: int) -> CommitRecord | None:
    """Return the record of step T* - 1 from an engine that has committed it."""
    for engine_id in sorted(reports):
        report = reports[engine_id]
        record = report.last_commit
        if report.committed_steps == target and record and record.step == target - 1:
            return record
    return None


def placement_of(record: CommitRecord | None, placements: Iterable[Placement]) -> Placement | None:
    """Return the placement whose sums a commit was made of, when it is among these."""
    for placement in placements:
        if record is not None and placement.generation == record.generation:
            return placement
    return None


def late_engines(
    reports: Mapping[str, FenceReport], target: int, placement: Placement | None
) -> tuple[str, ...]:
    """Return the engines one step late that have the sums of step T* - 1.

    Those are the ones that took part in the generation that computed it, followers included; an
    engine parked since an earlier plan lags as well, but its layers are of no use.

    Args:
        reports: of every survivor.
        target: T*.
        placement: the one of the generation that computed the step.
    """
    if placement is None:
        return ()
    return tuple(
        engine_id
        for engine_id, report in sorted(reports.items())
        if report.committed_steps == target - 1 and engine_id in placement.engine_ids
    )


def has_switched(candidate: Placement | None, reports: Mapping[str, FenceReport]) -> bool:
    """Return whether a survivor has passed the commit at which the candidate takes effect.

    The record of that commit proves it, or that of a later step, or work that an engine retained
    in the new generation. Without such a proof no survivor has passed it.
    """
    if candidate is None:
        return False
    return any(candidate.generation in _generations_known(report) for report in reports.values())


def _generations_known(report: FenceReport) -> tuple[int, ...]:
    record = report.last_commit
    known = (record.generation, record.next_generation) if record else ()
    return (report.applied_generation, *known)


def layers_of_version(layers: Iterable[HeldLayer], version: int) -> tuple[int, ...]:
    """Return the layers that are held in a version, in order."""
    return tuple(sorted(held.layer for held in layers if held.version == version))


def layers_without_replica(holdings: Holdings, num_layers: int) -> tuple[int, ...]:
    """Return the layers that no engine holds in version T*."""
    held = {layer for layers in holdings.values() for layer in layers}
    return tuple(layer for layer in range(num_layers) if layer not in held)


def holdings_by_node(holdings: Holdings, engines: Mapping[str, Engine]) -> tuple[Holding, ...]:
    """Return layers by node for the planner; nodes to be freed are sources, too."""
    by_node: dict[str, set[int]] = {}
    for engine_id, layers in holdings.items():
        by_node.setdefault(engines[engine_id].node_id, set()).update(layers)
    return tuple(
        Holding(node_id=node_id, layers=tuple(sorted(by_node[node_id])))
        for node_id in sorted(by_node)
        if by_node[node_id]
    )


def holdings_of_placement(
    placement: Placement, engine_ids: Collection[str], requirements: Requirements
) -> Holdings:
    """Return what engines hold if each holds what its assignment needs, followers included."""
    held = {
        engine_id: requirements.layers_of(stage)
        for pipeline, engines in zip(placement.plan.pipelines, placement.stage_engines, strict=True)
        for stage, engine_id in zip(pipeline.stages, engines, strict=True)
    }
    held.update(placement.followers)
    return {engine_id: layers for engine_id, layers in held.items() if engine_id in engine_ids}


def assign_engines(plan: Plan, engines: Iterable[Engine]) -> StageEngines:
    """Return the engine of each stage; KeyError when a stage has none."""
    by_accelerator = {(e.node_id, e.accelerator): e.id for e in engines if e.prepared}
    return tuple(
        tuple(by_accelerator[stage.node_id, stage.accelerators[0]] for stage in pipeline.stages)
        for pipeline in plan.pipelines
    )


def missing_layers(
    plan: Plan, stage_engines: StageEngines, holdings: Holdings, requirements: Requirements
) -> dict[str, tuple[int, ...]]:
    """Return, by engine, the layers that its stage needs and that it does not hold."""
    missing: dict[str, tuple[int, ...]] = {}
    for pipeline, engine_ids in zip(plan.pipelines, stage_engines, strict=True):
        for stage, engine_id in zip(pipeline.stages, engine_ids, strict=True):
            held = holdings.get(engine_id, ())
            needed = requirements.layers_of(stage)
            lacking = tuple(layer for layer in needed if layer not in held)
            if lacking:
                missing[engine_id] = lacking
    return missing


def choose_sources(
    missing: Mapping[str, Sequence[int]],
    holdings: Holdings,
    engines: Mapping[str, Engine],
    proposed: Iterable[LayerCopy] = (),
    *,
    skip: int = 0,
) -> dict[str, tuple[LayerSource, ...]]:
    """Name, for each missing layer, engines to fetch it from, the preferred one first.

    An engine of the same machine comes first: no network is faster, and the planner, to whom a
    machine's layers are one set, proposes none. Then comes the planner's proposal where its source
    still holds the layer; otherwise the holder that serves the fewest layers so far. A layer that
    no engine holds is left out: it comes from the job's initial state.

    Args:
        missing: the layers needed, by engine.
        holdings: by engine, its layers of version T*.
        engines: the living engines.
        proposed: the planner's copies.
        skip: rotate the holders so often: another try prefers another source.
    """
    wished = {(copy.destination_node_id, copy.layer): copy.source_node_id for copy in proposed}
    holders_of: dict[int, list[str]] = {}
    for engine_id in sorted(holdings):
        for layer in holdings[engine_id]:
            holders_of.setdefault(layer, []).append(engine_id)
    num_served: dict[str, int] = {}

    def source(engine_id: str, layer: int) -> LayerSource:
        own = engines[engine_id].node_id
        wish = wished.get((own, layer))

        def preference(holder: str) -> tuple[bool, bool, int]:
            node_id = engines[holder].node_id
            return node_id != own, node_id != wish, num_served.get(holder, 0)

        holders = sorted(holders_of[layer], key=preference)
        turn = skip % len(holders)
        holders = (holders[turn:] + holders[:turn])[:MAX_SOURCES]
        num_served[holders[0]] = num_served.get(holders[0], 0) + 1
        return LayerSource(layer=layer, addresses=tuple(engines[h].data_address for h in holders))

    return {
        engine_id: tuple(
            source(engine_id, layer) for layer in missing[engine_id] if layer in holders_of
        )
        for engine_id in sorted(missing)
    }
