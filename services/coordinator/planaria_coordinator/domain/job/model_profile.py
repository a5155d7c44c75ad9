"""The model profile of a job: sizes from its file, times as measured where they have been."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from planaria.job import ImportedSpec, JobSpec
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.model_config import ModelConfig
from planaria_common.model_sizes import layer_sizes
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import MeasuredLayer
from planaria_coordinator.domain.job.requirements import NodeFacts, Requirements
from planaria_coordinator.domain.placement.plan import Stage
from planaria_coordinator.domain.placement.planner_query import (
    HardwareProfile,
    LayerProfile,
    ModelProfile,
    NodeKind,
    PlanNode,
    Problem,
)

# Before anything is measured only the proportions of layers matter to a plan; these rates make
# the seconds of the right order.
_FLOPS_PER_SECOND = 2e10
_INTRA_NODE_BYTES_PER_SECOND = 1e10
_INTER_NODE_BYTES_PER_SECOND = 1e9
_LINK_LATENCY_SECONDS = 1e-4
_MOST_SECONDS = 60.0
"""A model of which a microbatch would compute, or its layers be sent, for longer than this is meant
for faster accelerators and links."""
_LEAST_SECONDS = 1e-5
"""A layer without arithmetic, such as the embedding, still takes time."""


def estimated_layers(spec: JobSpec) -> tuple[LayerProfile, ...]:
    """Return the sizes and estimated times of a job's layers, from its file alone.

    Of a model by import path nothing is known until an engine has built it: no layers.

    Raises:
        PlanariaError: INVALID_JOB when no such model can be built.
    """
    if isinstance(spec.model, ImportedSpec):
        return ()
    try:
        config = ModelConfig.from_job_file(spec.model.model_dump())
        _check_vocabulary(spec, config)
        sizes = layer_sizes(
            config,
            spec.training.microbatch_size,
            spec.data.sequence_length,
            dtype=spec.training.dtype,
            reproducible=spec.training.reproducible,
            activation_checkpointing=spec.training.activation_checkpointing,
        )
    except ValueError as error:
        message = str(error)
        field = message.partition(":")[0]
        raise PlanariaError(ErrorReason.INVALID_JOB, message, {"field": field}) from error
    flops = 3 * sum(size.forward_flops for size in sizes)
    rate = max(_FLOPS_PER_SECOND, flops / _MOST_SECONDS)
    return tuple(
        LayerProfile(
            name=size.name,
            forward_seconds=max(_LEAST_SECONDS, size.forward_flops / rate),
            backward_seconds=max(_LEAST_SECONDS, 2 * size.forward_flops / rate),
            parameter_bytes=size.parameter_bytes,
            state_bytes=size.state_bytes,
            activation_bytes=size.activation_bytes,
            output_bytes=size.output_bytes,
        )
        for size in sizes
    )


def _check_vocabulary(spec: JobSpec, config: ModelConfig) -> None:
    if spec.data.tokenizer == "byte" and config.vocab_size < 256:
        raise ValueError(
            f"model.vocab_size: {config.vocab_size} is too small for the byte tokenizer; "
            "it needs at least 256"
        )


def ties_embeddings(spec: JobSpec) -> bool:
    """Return whether the model's head shares the embedding's weights, as far as the file says."""
    if isinstance(spec.model, ImportedSpec):
        return False
    return ModelConfig.from_job_file(spec.model.model_dump()).tie_word_embeddings


def reported_layers(measured: Iterable[MeasuredLayer]) -> tuple[LayerProfile, ...]:
    """Return the layers of a model by import path as an engine that has built it reports them."""
    return tuple(
        LayerProfile(
            name=f"layer {layer.layer}",
            forward_seconds=max(_LEAST_SECONDS, layer.forward_seconds),
            backward_seconds=max(_LEAST_SECONDS, layer.backward_seconds),
            parameter_bytes=layer.parameter_bytes,
            state_bytes=layer.state_bytes,
            activation_bytes=layer.activation_bytes,
            output_bytes=layer.output_bytes,
        )
        for layer in sorted(measured, key=lambda layer: layer.layer)
    )


def measured_layers(
    layers: tuple[LayerProfile, ...], engines: Iterable[Engine]
) -> tuple[LayerProfile, ...]:
    """Put the median of what engines measured in the place of the estimates.

    Every engine reports every layer. Until the first report, all times are estimates.
    """
    samples: dict[int, list[MeasuredLayer]] = {}
    for engine in engines:
        for measured in engine.measured_layers:
            samples.setdefault(measured.layer, []).append(measured)
    if any(layer not in samples for layer in range(len(layers))):
        return layers
    return tuple(
        replace(
            layer,
            forward_seconds=max(
                _LEAST_SECONDS, median(each.forward_seconds for each in samples[index])
            ),
            backward_seconds=max(
                _LEAST_SECONDS, median(each.backward_seconds for each in samples[index])
            ),
        )
        for index, layer in enumerate(layers)
    )


def relative_speeds(engines: Iterable[Engine]) -> dict[str, float]:
    """Return, by node, how fast its slowest engine computed all layers; 1 for the median node."""
    seconds: dict[str, float] = {}
    for engine in engines:
        taken = sum(each.forward_seconds + each.backward_seconds for each in engine.measured_layers)
        if taken > 0:
            seconds[engine.node_id] = max(taken, seconds.get(engine.node_id, 0.0))
    usual = median(seconds.values()) if seconds else 0.0
    return {node_id: usual / taken for node_id, taken in sorted(seconds.items())}


def slowest_stage_seconds(layers: Sequence[LayerProfile], stages: Iterable[Stage]) -> float:
    """Return what one microbatch takes the slowest of some stages, links not counted."""
    return max(
        sum(layers[i].forward_seconds + layers[i].backward_seconds for i in stage.layers)
        for stage in stages
    )


def kind_name(facts: NodeFacts) -> str:
    """Return the name of the kind of node that a node is."""
    return (
        f"{facts.accelerator_kind}-{facts.num_accelerators}x{facts.accelerator_memory_bytes >> 20}M"
    )


def model_profile(
    layers: tuple[LayerProfile, ...], microbatch_size: int, nodes: Iterable[NodeFacts]
) -> ModelProfile:
    """Return the profile that describes a model on these nodes."""
    kinds = {
        kind_name(facts): NodeKind(
            name=kind_name(facts),
            accelerators_per_node=facts.num_accelerators,
            accelerator_memory_bytes=facts.accelerator_memory_bytes,
        )
        for facts in nodes
    }
    moved_bytes = sum(layer.parameter_bytes + layer.output_bytes for layer in layers)
    faster = max(1.0, moved_bytes / (_INTER_NODE_BYTES_PER_SECOND * _MOST_SECONDS))
    return ModelProfile(
        microbatch_size=microbatch_size,
        hardware=HardwareProfile(
            node_kinds=tuple(sorted(kinds.values(), key=_largest_first)),
            intra_node_bytes_per_second=_INTRA_NODE_BYTES_PER_SECOND * faster,
            inter_node_bytes_per_second=_INTER_NODE_BYTES_PER_SECOND * faster,
            link_latency_seconds=_LINK_LATENCY_SECONDS,
        ),
        layers=layers,
    )


def _largest_first(kind: NodeKind) -> tuple[int, str]:
    """Order kinds: the fewest nodes that hold a model are counted in nodes of the first one."""
    return -kind.accelerators_per_node * kind.accelerator_memory_bytes, kind.name


def planning_problem(
    requirements: Requirements,
    nodes: Mapping[str, NodeFacts],
    engines: Iterable[Engine] = (),
    *,
    fault_tolerance: int | None = None,
) -> Problem:
    """Return what every question to the planner about this job begins with."""
    layers = measured_layers(requirements.layers, engines)
    wanted = requirements.fault_tolerance if fault_tolerance is None else fault_tolerance
    return Problem(
        profile=model_profile(layers, requirements.microbatch_size, nodes.values()),
        num_microbatches=requirements.num_microbatches,
        fault_tolerance=wanted,
        min_nodes_per_pipeline=requirements.min_nodes_per_pipeline,
    )


def plan_nodes(nodes: Mapping[str, NodeFacts], node_ids: Iterable[str]) -> tuple[PlanNode, ...]:
    """Return the nodes as the planner sees them."""
    return tuple(
        PlanNode(node_id=node_id, kind=kind_name(nodes[node_id])) for node_id in sorted(node_ids)
    )
