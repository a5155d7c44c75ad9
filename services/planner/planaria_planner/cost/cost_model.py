"""The cost model: what a pipeline of given stages takes (planning.md 1).

A step of M microbatches takes T(M) = a + b*M seconds. Everything here is in the profile's own
floats, summed from left to right, so that equal stages always cost exactly the same.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planaria_planner.cost.profile import Layer, ModelProfile, NodeKind


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


def layers_by_node(stages: Sequence[Stage]) -> tuple[range, ...]:
    """Return for each node of a pipeline the layers that it holds."""
    first = [
        stage.first_layer
        for index, stage in enumerate(stages)
        if not index or stage.node != stages[index - 1].node
    ]
    return tuple(range(a, b) for a, b in itertools.pairwise([*first, stages[-1].end_layer]))


class CostModel:
    """The costs of stages and pipelines of one model; making one tabulates the profile.

    Args:
        profile: the model.
    """

    def __init__(self, profile: ModelProfile) -> None:
        self.profile = profile
        self._seconds = [
            {
                width: [self.layer_seconds(kind, layer, width) for layer in profile.layers]
                for width in profile.layers[0].forward_seconds
            }
            for kind in profile.hardware.node_kinds
        ]
        self._parameter_bytes = _prefix(layer.parameter_bytes for layer in profile.layers)
        self._state_bytes = _prefix(layer.state_bytes for layer in profile.layers)
        self._activation_bytes = _prefix(layer.activation_bytes for layer in profile.layers)

    @staticmethod
    def layer_seconds(kind: NodeKind, layer: Layer, accelerators: int) -> float:
        """Return the forward and backward seconds of one layer on a node of `kind`."""
        seconds = layer.forward_seconds[accelerators] + layer.backward_seconds[accelerators]
        return seconds / kind.relative_speed

    def send_seconds(self, end_layer: int, *, same_node: bool) -> float:
        """Return x_s of a stage that ends before `end_layer`: activations on, gradients back."""
        if end_layer == self.profile.num_layers:
            return 0.0
        hardware = self.profile.hardware
        bandwidth = (
            hardware.intra_node_bytes_per_second
            if same_node
            else hardware.inter_node_bytes_per_second
        )
        output_bytes = self.profile.layers[end_layer - 1].output_bytes
        return 2 * (hardware.link_latency_seconds + output_bytes / bandwidth)

    def sync_seconds(self, stage: Stage) -> float:
        """Return y, if this is the first stage: its gradient sum, the one that nothing hides."""
        parameter_bytes = (
            self._parameter_bytes[stage.end_layer] - self._parameter_bytes[stage.first_layer]
        )
        bandwidth = self.profile.hardware.inter_node_bytes_per_second
        return 2 * parameter_bytes / (stage.accelerators * bandwidth)

    def stage_seconds(self, kind: int, stage: Stage, following: Stage | None) -> float:
        """Return w_s: what one microbatch takes on a stage, sends included."""
        seconds = 0.0
        for of_layer in self._seconds[kind][stage.accelerators][
            stage.first_layer : stage.end_layer
        ]:
            seconds += of_layer
        if following is None:
            return seconds
        same_node = following.node == stage.node
        return seconds + self.send_seconds(stage.end_layer, same_node=same_node)

    def max_microbatches(self, kind: int, stage: Stage, stages_to_end: int) -> int | None:
        """Return how many microbatches a stage may run in a step, None where memory never binds.

        Args:
            kind: index of the kind of the stage's node.
            stage: the stage.
            stages_to_end: how many stages there are from this one to the end, itself included: so
                many microbatches are in flight here under 1F1B when the step has as many.
        """
        first, end = stage.first_layer, stage.end_layer
        state_bytes = self._state_bytes[end] - self._state_bytes[first]
        activation_bytes = self._activation_bytes[end] - self._activation_bytes[first]
        memory_bytes = (
            self.profile.hardware.node_kinds[kind].accelerator_memory_bytes * stage.accelerators
        )
        if state_bytes + stages_to_end * activation_bytes <= memory_bytes:
            return None
        return max(0, (memory_bytes - state_bytes) // activation_bytes) if activation_bytes else 0

    def pipeline_cost(
        self, stages: Sequence[Stage], node_kinds: Sequence[int] | None = None
    ) -> PipelineCost:
        """Return a, b and the microbatches that fit of a pipeline.

        Args:
            stages: the stages in layer order.
            node_kinds: for each node of the pipeline the index of its kind; the first by default.
        """
        total, slowest, fit = 0.0, 0.0, None
        for index, stage in enumerate(stages):
            kind = node_kinds[stage.node] if node_kinds else 0
            following = stages[index + 1] if index + 1 < len(stages) else None
            seconds = self.stage_seconds(kind, stage, following)
            total += seconds
            slowest = max(slowest, seconds)
            here = self.max_microbatches(kind, stage, len(stages) - index)
            if here is not None:
                fit = here if fit is None else min(fit, here)
        return PipelineCost(
            fixed_seconds=total - slowest + self.sync_seconds(stages[0]),
            microbatch_seconds=slowest,
            max_microbatches=fit,
        )


def _prefix(values: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(values, initial=0))
