"""Choose the pipelines that finish the step in flight after a loss: protocol/recovery.md.

Parameters do not change within a step, and a microbatch's gradient does not depend on who computes
it: what healthy pipelines have computed, or are computing, stays true. Only what none of them keeps
is computed again, spread over them so that all are ready at about the same time.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import FenceReport
from planaria_coordinator.domain.job.model_profile import measured_layers, slowest_stage_seconds
from planaria_coordinator.domain.job.requirements import Requirements
from planaria_coordinator.domain.placement.placement import Placement, peak_of
from planaria_coordinator.domain.placement.plan import Pipeline, Plan
from planaria_coordinator.domain.placement.planner_query import LayerProfile
from planaria_coordinator.domain.placement.replicas import Holdings


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPipeline:
    """A pipeline that has lost nobody and goes on computing."""

    index: int
    """Its position in the placement."""
    microbatches: tuple[int, ...]
    """Of the step in flight: computed, being computed, or about to be."""
    num_remaining: int
    """How many of them its slowest stage still had to compute."""
    microbatch_seconds: float
    """What one takes its slowest stage, as measured; 0 where not all stages know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much a pipeline has to do, how fast it is, and how much more it has memory for."""

    num_remaining: int
    seconds_per_microbatch: float
    room: float = math.inf


def kept_pipelines(
    placement: Placement,
    reports: Mapping[str, FenceReport],
    holdings: Holdings,
    target_steps: int,
    requirements: Requirements,
    *,
    parks_after_commit: bool = False,
) -> tuple[KeptPipeline, ...]:
    """Return the pipelines that can keep the step in flight.

    All engines of such a pipeline have reported, and go on computing; all last applied the same
    Activate, one that made them this pipeline, and so have done the same number of commit attempts;
    all stood at the same step, and now hold their layers in version T*. There are none if they have
    no memory for what the others would have run, in this step or in every later one.

    Args:
        placement: the newest plan that engines have received.
        reports: of every survivor.
        holdings: by engine, its layers of version T*, after late engines have rolled forward.
        target_steps: T*.
        requirements: of the job.
        parks_after_commit: engines that receive the commit that led to T* park after it.
    """
    found = (
        _kept_pipeline(
            index, placement, reports, target_steps, parks_after_commit=parks_after_commit
        )
        for index in range(len(placement.stage_engines))
        if _holds_its_layers(index, placement, holdings, requirements)
    )
    kept = tuple(pipeline for pipeline in found if pipeline is not None)
    return kept if _have_room(kept, placement.plan, requirements) else ()


def _have_room(kept: Sequence[KeptPipeline], plan: Plan, requirements: Requirements) -> bool:
    pipelines = [plan.pipelines[each.index] for each in kept]
    of_step = [each.microbatches for each in kept]
    of_every_step = [pipeline.microbatches for pipeline in pipelines]
    return all(
        sum(p.room(len(mine)) for p, mine in zip(pipelines, microbatches, strict=True))
        >= requirements.num_microbatches - sum(map(len, microbatches))
        for microbatches in (of_step, of_every_step)
    )


def _holds_its_layers(
    index: int, placement: Placement, holdings: Holdings, requirements: Requirements
) -> bool:
    stages = zip(
        placement.plan.pipelines[index].stages, placement.stage_engines[index], strict=True
    )
    return all(
        set(requirements.layers_of(stage)) <= set(holdings.get(engine_id, ()))
        for stage, engine_id in stages
    )


def _kept_pipeline(
    index: int,
    placement: Placement,
    reports: Mapping[str, FenceReport],
    target_steps: int,
    *,
    parks_after_commit: bool,
) -> KeptPipeline | None:
    members = [reports.get(engine_id) for engine_id in placement.stage_engines[index]]
    present = [report for report in members if report is not None and report.park_time is None]
    views = {(r.applied_generation, r.committed_steps, r.kept_microbatches) for r in present}
    if len(present) < len(members) or len(views) != 1:
        return None
    applied_generation, committed_steps, kept = views.pop()
    if applied_generation < placement.first_generation(index):
        return None
    measured = [report.microbatch_seconds for report in present]
    seconds = max(measured) if all(measured) else 0.0
    if committed_steps < target_steps:
        if applied_generation != placement.generation or parks_after_commit:
            return None
        # It has received the commit of its step, and begins the next one with what it always runs.
        kept = placement.plan.pipelines[index].microbatches
        return KeptPipeline(
            index=index, microbatches=kept, num_remaining=len(kept), microbatch_seconds=seconds
        )
    if not kept:
        return None
    num_finished = min(len(set(kept).intersection(r.finished_microbatches)) for r in present)
    return KeptPipeline(
        index=index,
        microbatches=kept,
        num_remaining=len(kept) - num_finished,
        microbatch_seconds=seconds,
    )


def spread(pool: Sequence[int], shares: Sequence[Share]) -> tuple[tuple[int, ...], ...]:
    """Give each microbatch of the pool to the pipeline that would be ready with it first.

    All of them together must have room for the pool.
    """
    given: list[list[int]] = [[] for _ in shares]
    ready = [
        ((share.num_remaining + 1) * share.seconds_per_microbatch, index)
        for index, share in enumerate(shares)
        if share.room > 0
    ]
    heapq.heapify(ready)
    for microbatch in pool:
        seconds, index = heapq.heappop(ready)
        given[index].append(microbatch)
        if len(given[index]) < shares[index].room:
            heapq.heappush(ready, (seconds + shares[index].seconds_per_microbatch, index))
    return tuple(tuple(microbatches) for microbatches in given)


def microbatch_seconds(
    kept: Sequence[KeptPipeline], plan: Plan, layers: Sequence[LayerProfile]
) -> tuple[float, ...]:
    """Return seconds per microbatch of each kept pipeline, to spread microbatches by.

    They are measured if all pipelines have been, else those of the model's profile. The two are not
    mixed: on a busy machine measured seconds are longer.
    """
    measured = tuple(pipeline.microbatch_seconds for pipeline in kept)
    if all(measured):
        return measured
    return tuple(slowest_stage_seconds(layers, plan.pipelines[p.index].stages) for p in kept)


def finishing_placement(
    placement: Placement,
    kept: Sequence[KeptPipeline],
    holdings: Holdings,
    engines: Mapping[str, Engine],
    requirements: Requirements,
    *,
    generation: int,
) -> Placement:
    """Return the placement that finishes the step: healthy pipelines, and followers.

    Args:
        placement: the newest plan that engines have received.
        kept: the pipelines that keep the step; at least one.
        holdings: by engine, its layers of version T*.
        engines: the survivors.
        requirements: of the job.
        generation: the new generation.
    """
    pipelines = [placement.plan.pipelines[pipeline.index] for pipeline in kept]
    stage_engines = tuple(placement.stage_engines[pipeline.index] for pipeline in kept)
    # Every engine has measured every layer, and this is on the way to the first Activate: one
    # pipeline's measurements will do.
    layers = measured_layers(requirements.layers, [engines[e] for e in stage_engines[0]])
    seconds = microbatch_seconds(kept, placement.plan, layers)
    num_microbatches = requirements.num_microbatches
    of_step = _complete(
        pipelines,
        seconds,
        [each.microbatches for each in kept],
        [each.num_remaining for each in kept],
        num_microbatches,
    )
    regular = [pipeline.microbatches for pipeline in pipelines]
    of_every_step = _complete(
        pipelines, seconds, regular, [len(mine) for mine in regular], num_microbatches
    )
    placed = frozenset(engine_id for pipeline in stage_engines for engine_id in pipeline)
    return Placement(
        generation=generation,
        plan=_plan(pipelines, of_every_step, layers, holdings, engines, requirements),
        stage_engines=stage_engines,
        reason="the step in flight is finished by the healthy pipelines",
        followers={e: layers for e, layers in holdings.items() if layers and e not in placed},
        step_microbatches=of_step,
        first_generations=tuple(placement.first_generation(p.index) for p in kept),
        peak_flops_per_second=peak_of(stage_engines, engines),
        plan_before=placement.plan_to_change,
    )


def _complete(
    pipelines: Sequence[Pipeline],
    seconds: Sequence[float],
    kept: Sequence[tuple[int, ...]],
    num_remaining: Sequence[int],
    num_microbatches: int,
) -> tuple[tuple[int, ...], ...]:
    """Add to what each pipeline keeps its share of the microbatches that none keeps."""
    shares = [
        Share(num_remaining=remaining, seconds_per_microbatch=each, room=pipeline.room(len(mine)))
        for pipeline, each, mine, remaining in zip(
            pipelines, seconds, kept, num_remaining, strict=True
        )
    ]
    pool = sorted(set(range(num_microbatches)).difference(*kept))
    given = spread(pool, shares)
    return tuple(tuple(sorted((*mine, *more))) for mine, more in zip(kept, given, strict=True))


def _plan(
    pipelines: Iterable[Pipeline],
    microbatches: Sequence[tuple[int, ...]],
    layers: Sequence[LayerProfile],
    holdings: Holdings,
    engines: Mapping[str, Engine],
    requirements: Requirements,
) -> Plan:
    resized = tuple(
        replace(
            pipeline, microbatches=mine, iteration_seconds=_seconds_with(pipeline, mine, layers)
        )
        for pipeline, mine in zip(pipelines, microbatches, strict=True)
    )
    placed = {node_id for pipeline in resized for node_id in pipeline.node_ids}
    return Plan(
        pipelines=resized,
        idle_node_ids=tuple(sorted({e.node_id for e in engines.values()} - placed)),
        iteration_seconds=max(pipeline.iteration_seconds for pipeline in resized),
        fault_tolerance=_fault_tolerance(holdings, engines, requirements),
    )


def _seconds_with(
    pipeline: Pipeline, microbatches: Sequence[int], layers: Sequence[LayerProfile]
) -> float:
    """Return its predicted step time with these microbatches; 0, not predicted, stays 0.

    Every further one adds the time of the slowest stage: T = a + b*m, planning.md 1.
    """
    if not pipeline.iteration_seconds:
        return 0.0
    num_further = len(microbatches) - len(pipeline.microbatches)
    return pipeline.iteration_seconds + num_further * slowest_stage_seconds(layers, pipeline.stages)


def _fault_tolerance(
    holdings: Holdings, engines: Mapping[str, Engine], requirements: Requirements
) -> int:
    """Return how many nodes may go with a replica of every layer left."""
    nodes: list[set[str]] = [set() for _ in range(requirements.num_layers)]
    for engine_id, layers in holdings.items():
        for layer in layers:
            nodes[layer].add(engines[engine_id].node_id)
    return min(len(holders) for holders in nodes) - 1
