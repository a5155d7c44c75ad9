"""The cost model: what a pipeline of given stages takes (ALGORITHMS.md 1).

A step of M microbatches takes T(M) = a + b*M seconds. Everything here is in the profile's own
floats, summed from left to right, so that equal stages always cost exactly the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planaria_planner.profile import ModelProfile, NodeKind


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Stage:
    """Consecutive layers on accelerators of one node.

    Attributes:
        first_layer: index of the first layer; the embedding is 0.
        num_layers: how many layers.
        node: index of the node within the pipeline, 0 for the node of the first stage.
        accelerators: how many accelerators of the node.
    """

    first_layer: int
    num_layers: int
    node: int
    accelerators: int

    @property
    def end_layer(self) -> int:
        """The layer after the last one."""
        return self.first_layer + self.num_layers

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.end_layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCost:
    """T(M) = a + b*M, for M up to what memory allows.

    Attributes:
        fixed_seconds: a.
        microbatch_seconds: b, the slowest stage's seconds.
        max_microbatches: the most microbatches that fit, None where memory never binds.
    """

    fixed_seconds: float
    microbatch_seconds: float
    max_microbatches: int | None

    def iteration_seconds(self, num_microbatches: int) -> float:
        """Return the seconds of one step of `num_microbatches`."""
        return self.fixed_seconds + self.microbatch_seconds * num_microbatches

    def slowed(self, relative_speed: float) -> "PipelineCost":
        """Return the cost when the slowest node has this fraction of its kind's speed."""
        return PipelineCost(
            fixed_seconds=self.fixed_seconds / relative_speed,
            microbatch_seconds=self.microbatch_seconds / relative_speed,
            max_microbatches=self.max_microbatches,
        )


def send_seconds(profile: ModelProfile, end_layer: int, *, same_node: bool) -> float:
    """Return x_s of a stage that ends before `end_layer`: activations there, gradients back."""
    if end_layer == profile.num_layers:
        return 0.0
    hardware = profile.hardware
    bandwidth = (
        hardware.intra_node_bytes_per_second if same_node else hardware.inter_node_bytes_per_second
    )
    output_bytes = profile.layers[end_layer - 1].output_bytes
    return 2 * (hardware.link_latency_seconds + output_bytes / bandwidth)


def sync_seconds(profile: ModelProfile, first: Stage) -> float:
    """Return y: the first stage's gradient sum, the one that nothing hides."""
    parameter_bytes = sum(profile.layers[layer].parameter_bytes for layer in first.layers)
    bandwidth = profile.hardware.inter_node_bytes_per_second
    return 2 * parameter_bytes / (first.accelerators * bandwidth)


def layer_seconds(profile: ModelProfile, kind: NodeKind, layer: int, accelerators: int) -> float:
    """Return the forward and backward seconds of one layer on a node of `kind`."""
    costs = profile.layers[layer]
    seconds = costs.forward_seconds[accelerators] + costs.backward_seconds[accelerators]
    return seconds / kind.relative_speed


def stage_seconds(
    profile: ModelProfile, kind: NodeKind, stage: Stage, following: Stage | None
) -> float:
    """Return w_s: what one microbatch takes on a stage, sends included."""
    seconds = 0.0
    for layer in stage.layers:
        seconds += layer_seconds(profile, kind, layer, stage.accelerators)
    if following is None:
        return seconds
    same_node = following.node == stage.node
    return seconds + send_seconds(profile, stage.end_layer, same_node=same_node)


def max_microbatches(
    profile: ModelProfile, kind: NodeKind, stage: Stage, stages_to_end: int
) -> int | None:
    """Return how many microbatches a stage may run in a step, None where memory never binds.

    Args:
        profile: the model.
        kind: the kind of the stage's node.
        stage: the stage.
        stages_to_end: how many stages there are from this one to the end, itself included: so many
            microbatches are in flight here under 1F1B when the step has as many.
    """
    state_bytes = sum(profile.layers[layer].state_bytes for layer in stage.layers)
    activation_bytes = sum(profile.layers[layer].activation_bytes for layer in stage.layers)
    memory_bytes = kind.accelerator_memory_bytes * stage.accelerators
    if state_bytes + stages_to_end * activation_bytes <= memory_bytes:
        return None
    return max(0, (memory_bytes - state_bytes) // activation_bytes) if activation_bytes else 0


def pipeline_cost(
    profile: ModelProfile, stages: Sequence[Stage], node_kinds: Sequence[int] | None = None
) -> PipelineCost:
    """Return a, b and the microbatches that fit of a pipeline.

    Args:
        profile: the model.
        stages: the stages in layer order.
        node_kinds: for each node of the pipeline the index of its kind; the first kind by default.
    """
    total, slowest, fit = 0.0, 0.0, None
    for index, stage in enumerate(stages):
        kind = profile.hardware.node_kinds[node_kinds[stage.node] if node_kinds else 0]
        following = stages[index + 1] if index + 1 < len(stages) else None
        seconds = stage_seconds(profile, kind, stage, following)
        total += seconds
        slowest = max(slowest, seconds)
        here = max_microbatches(profile, kind, stage, len(stages) - index)
        if here is not None:
            fit = here if fit is None else min(fit, here)
    return PipelineCost(
        fixed_seconds=total - slowest + sync_seconds(profile, stages[0]),
        microbatch_seconds=slowest,
        max_microbatches=fit,
    )
