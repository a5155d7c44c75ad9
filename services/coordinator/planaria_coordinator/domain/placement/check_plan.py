"""Check a plan before it is carried out, whoever made it: the planner, or a user's scheduler."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from planaria_common.words import bytes_in_words, counted
from planaria_coordinator.domain.job.model_profile import slowest_stage_seconds
from planaria_coordinator.domain.placement.plan import Pipeline, Plan, Stage
from planaria_coordinator.domain.placement.planner_query import LayerProfile, NodeKind, PlanQuery


def plan_problem(
    plan: Plan, query: PlanQuery, *, fault_tolerance: int, node_ids: Collection[str]
) -> str | None:
    """Name the first field that makes a plan impossible, and what it must be.

    Args:
        plan: the plan.
        query: the question that it answers.
        fault_tolerance: how many nodes must be able to go with a replica of every layer left.
        node_ids: the nodes that may be used.

    Returns:
        None when the plan can be carried out.
    """
    return next(_problems(plan, query, fault_tolerance, frozenset(node_ids)), None)


def completed_plan(plan: Plan, query: PlanQuery) -> Plan:
    """Return a plan of which the stages and microbatches were checked with all else computed.

    Steps are predicted without links: every further microbatch takes the slowest stage's time.
    """
    layers, kinds = query.problem.profile.layers, _kinds(query)
    pipelines = tuple(_completed_pipeline(pipeline, layers, kinds) for pipeline in plan.pipelines)
    used = set(plan.node_ids)
    return Plan(
        pipelines=pipelines,
        idle_node_ids=tuple(n.node_id for n in query.nodes if n.node_id not in used),
        iteration_seconds=max(pipeline.iteration_seconds for pipeline in pipelines),
        fault_tolerance=min(map(len, _hosts(plan).values())) - 1,
    )


def with_node_indices(plan: Plan) -> Plan:
    """Return a plan whose stages say which of their pipeline's nodes they are on."""
    pipelines = []
    for pipeline in plan.pipelines:
        indices = _node_indices(pipeline)
        stages = (replace(stage, node_index=indices[stage.node_id]) for stage in pipeline.stages)
        pipelines.append(replace(pipeline, stages=tuple(stages)))
    return replace(plan, pipelines=tuple(pipelines))


def _node_indices(pipeline: Pipeline) -> dict[str, int]:
    return {node_id: index for index, node_id in enumerate(pipeline.node_ids)}


def _completed_pipeline(
    pipeline: Pipeline, layers: tuple[LayerProfile, ...], kinds: Mapping[str, NodeKind]
) -> Pipeline:
    each = [slowest_stage_seconds(layers, [stage]) for stage in pipeline.stages]
    room = min(_microbatches_that_fit(pipeline, layers, kinds))
    return replace(
        pipeline,
        iteration_seconds=sum(each) + (len(pipeline.microbatches) - 1) * max(each),
        max_microbatches=0 if room == math.inf else int(room),
    )


def _problems(
    plan: Plan, query: PlanQuery, fault_tolerance: int, node_ids: frozenset[str]
) -> Iterator[str]:
    if not plan.pipelines:
        yield "pipelines is empty: at least one must cover the layers"
    kinds = _kinds(query)
    homes: dict[str, int] = {}
    for index, pipeline in enumerate(plan.pipelines):
        yield from _layer_problems(index, pipeline, len(query.problem.profile.layers))
        for position, stage in enumerate(pipeline.stages):
            field = f"pipelines[{index}].stages[{position}]"
            if stage.node_id not in kinds or stage.node_id not in node_ids:
                offered = ", ".join(sorted(node_ids & kinds.keys()))
                yield f"{field}.node_id is {stage.node_id[:64]!r}, must be one of {offered}"
            elif homes.setdefault(stage.node_id, index) != index:
                yield (
                    f"{field}.node_id is {stage.node_id}, which pipelines[{homes[stage.node_id]}] "
                    "has: must be a node of one pipeline only"
                )
            else:
                yield from _accelerator_problems(field, stage, kinds[stage.node_id])
        yield from _node_problems(index, pipeline, query.problem.min_nodes_per_pipeline)
        yield from _memory_problems(index, pipeline, query.problem.profile.layers, kinds)
    yield from _microbatch_problems(plan, query.problem.num_microbatches)
    yield from _replica_problems(plan, fault_tolerance)


def _layer_problems(index: int, pipeline: Pipeline, num_layers: int) -> Iterator[str]:
    next_layer = 0
    for position, stage in enumerate(pipeline.stages):
        field = f"pipelines[{index}].stages[{position}]"
        if stage.first_layer != next_layer:
            yield (
                f"{field}.first_layer is {stage.first_layer}, must be {next_layer}: "
                "stages cover every layer once, in order"
            )
        if not 1 <= stage.num_layers <= num_layers - next_layer:
            yield (
                f"{field}.num_layers is {stage.num_layers}, must be 1 to "
                f"{num_layers - next_layer}: {counted(num_layers - next_layer, 'layer')} left"
            )
        next_layer += stage.num_layers
    if next_layer != num_layers:
        yield f"pipelines[{index}].stages cover {next_layer} layers, must cover {num_layers}"


def _accelerator_problems(field: str, stage: Stage, kind: NodeKind) -> Iterator[str]:
    if len(stage.accelerators) != 1:
        yield f"{field}.accelerators has {len(stage.accelerators)} entries, must have 1"
    elif stage.accelerators[0] >= kind.accelerators_per_node:
        yield (
            f"{field}.accelerators is {stage.accelerators[0]}, must be below "
            f"{kind.accelerators_per_node}: so many has {stage.node_id}"
        )


def _node_problems(index: int, pipeline: Pipeline, min_nodes: int) -> Iterator[str]:
    """Check that a pipeline goes from node to node, and uses no accelerator twice."""
    taken: set[tuple[str, int]] = set()
    indices = _node_indices(pipeline)
    for position, stage in enumerate(pipeline.stages):
        field = f"pipelines[{index}].stages[{position}]"
        place = (stage.node_id, stage.accelerators[0])
        if place in taken:
            yield (
                f"{field}.accelerators is {place[1]}, which an earlier stage has: must be "
                f"another one of {stage.node_id}"
            )
        taken.add(place)
        node_index = indices[stage.node_id]
        if stage.node_index != node_index:
            yield f"{field}.node_index is {stage.node_index}, must be {node_index}"
        if position and node_index < pipeline.stages[position - 1].node_index:
            yield (
                f"{field}.node_id is {stage.node_id}, an earlier node's: stages of one node must "
                "follow each other"
            )
    if len(indices) < min_nodes:
        yield (
            f"pipelines[{index}] has {counted(len(indices), 'node')}, must have "
            f"{min_nodes} (resources.min_nodes_per_pipeline)"
        )


def _memory_problems(
    index: int,
    pipeline: Pipeline,
    layers: tuple[LayerProfile, ...],
    kinds: Mapping[str, NodeKind],
) -> Iterator[str]:
    room = _microbatches_that_fit(pipeline, layers, kinds)
    for position, (stage, most) in enumerate(zip(pipeline.stages, room, strict=True)):
        if most < max(1, len(pipeline.microbatches)):
            memory = kinds[stage.node_id].accelerator_memory_bytes
            yield (
                f"pipelines[{index}].stages[{position}] does not fit into {stage.node_id}: must "
                f"have fewer layers, or its pipeline at most {most:.0f} microbatches a step "
                f"instead of {len(pipeline.microbatches)} ({bytes_in_words(memory)})"
            )


def _microbatches_that_fit(
    pipeline: Pipeline, layers: tuple[LayerProfile, ...], kinds: Mapping[str, NodeKind]
) -> list[float]:
    """Return how many microbatches of a step fit on each stage: the planner's estimate.

    As many are in flight on a stage under 1F1B as there are stages from it to the end, or as the
    pipeline has microbatches (planning.md 1).
    """
    room: list[float] = []
    for position, stage in enumerate(pipeline.stages):
        mine = layers[stage.first_layer : stage.first_layer + stage.num_layers]
        activation_bytes = sum(layer.activation_bytes for layer in mine)
        free_bytes = kinds[stage.node_id].accelerator_memory_bytes - sum(
            layer.state_bytes for layer in mine
        )
        if (len(pipeline.stages) - position) * activation_bytes <= free_bytes:
            room.append(math.inf)
        else:
            room.append(max(0, free_bytes // activation_bytes) if activation_bytes else 0)
    return room


def _microbatch_problems(plan: Plan, num_microbatches: int) -> Iterator[str]:
    given = Counter(m for pipeline in plan.pipelines for m in pipeline.microbatches)
    for index, pipeline in enumerate(plan.pipelines):
        field = f"pipelines[{index}].microbatches"
        if not pipeline.microbatches:
            yield f"{field} is empty, must have at least one"
        for microbatch in pipeline.microbatches:
            if microbatch >= num_microbatches:
                yield f"{field} has {microbatch}, must be below {num_microbatches}"
            if given[microbatch] > 1:
                yield f"{field} has {microbatch}, which comes {given[microbatch]} times: must once"
    for microbatch in range(num_microbatches):
        if microbatch not in given:
            yield (
                f"pipelines.microbatches lack {microbatch}: must have each of the "
                f"{num_microbatches} microbatches exactly once"
            )


def _replica_problems(plan: Plan, fault_tolerance: int) -> Iterator[str]:
    for layer, hosts in _hosts(plan).items():
        if len(hosts) <= fault_tolerance:
            yield (
                f"pipelines: layer {layer} is on {counted(len(hosts), 'node')}, must be on "
                f"{fault_tolerance + 1} (resilience.fault_tolerance)"
            )


def _hosts(plan: Plan) -> dict[int, set[str]]:
    hosts: dict[int, set[str]] = {}
    for stage in plan.stages:
        for layer in stage.layers:
            hosts.setdefault(layer, set()).add(stage.node_id)
    return hosts


def _kinds(query: PlanQuery) -> dict[str, NodeKind]:
    """Return the kind of each node that was offered."""
    kinds = {kind.name: kind for kind in query.problem.profile.hardware.node_kinds}
    first = query.problem.profile.hardware.node_kinds[0]
    return {node.node_id: kinds[node.kind] if node.kind else first for node in query.nodes}
