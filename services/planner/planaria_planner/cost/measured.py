"""A profile from what the worker measured, and how well the cost model fits it."""

import re
from dataclasses import dataclass

from planaria_common.measurement import LayerMeasurement, Measurement
from planaria_planner.cost.cost_model import CostModel, Stage
from planaria_planner.cost.profile import Hardware, Layer, ModelProfile, NodeKind

WIDTH = 1
"""Accelerators of a stage that can be measured: engines do not run tensor-parallel stages yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """The cost model compared with a training step of all layers on one accelerator.

    Attributes:
        num_microbatches: of the step.
        predicted_seconds: b*M; one accelerator sums its gradients with nobody.
        update_seconds: what the layers' updates were measured to take, which the model leaves out.
        measured_seconds: the median step.
        spread: of the steps; distance between the quartiles as a part of the median.
    """

    num_microbatches: int
    predicted_seconds: float
    update_seconds: float
    measured_seconds: float
    spread: float

    @property
    def relative_error(self) -> float:
        """How far the model is from the measurement; negative where it says too little."""
        return self.predicted_seconds / self.measured_seconds - 1


def measured_profile(
    measurement: Measurement,
    *,
    microbatch_size: int,
    accelerators_per_node: int | None = None,
    inter_node_bytes_per_second: float | None = None,
) -> ModelProfile:
    """Put a measurement into the planner's terms.

    Args:
        measurement: of every layer.
        microbatch_size: sequences of a microbatch.
        accelerators_per_node: by default those of the machine that measured.
        inter_node_bytes_per_second: by default the measured link's, within the node.

    Raises:
        PlanariaError: INVALID_PROFILE, naming the field.
    """
    link = measurement.link
    return ModelProfile(
        microbatch_size=microbatch_size,
        hardware=Hardware(
            node_kinds=(
                NodeKind(
                    name=_kind_name(measurement),
                    accelerators_per_node=measurement.num_accelerators
                    if accelerators_per_node is None
                    else accelerators_per_node,
                    accelerator_memory_bytes=measurement.accelerator_memory_bytes,
                ),
            ),
            intra_node_bytes_per_second=link.bytes_per_second,
            inter_node_bytes_per_second=link.bytes_per_second
            if inter_node_bytes_per_second is None
            else inter_node_bytes_per_second,
            link_latency_seconds=link.latency_seconds,
        ),
        layers=tuple(_layer(layer) for layer in measurement.layers),
    )


def check_step(profile: ModelProfile, measurement: Measurement) -> StepCheck | None:
    """Compare the cost model with the measured steps; None when there are none."""
    measured = measurement.step
    if measured is None:
        return None
    whole = Stage(first_layer=0, num_layers=profile.num_layers, node=0, accelerators=WIDTH)
    cost = CostModel(profile).pipeline_cost((whole,))
    return StepCheck(
        num_microbatches=measured.num_microbatches,
        predicted_seconds=cost.microbatch_seconds * measured.num_microbatches,
        update_seconds=sum(layer.update.median_seconds for layer in measurement.layers),
        measured_seconds=measured.step.median_seconds,
        spread=measured.step.spread,
    )


def _layer(layer: LayerMeasurement) -> Layer:
    return Layer(
        name=layer.name,
        forward_seconds={WIDTH: layer.forward.median_seconds},
        backward_seconds={WIDTH: layer.backward.median_seconds},
        parameter_bytes=layer.parameter_bytes,
        state_bytes=layer.state_bytes,
        activation_bytes=layer.activation_bytes,
        output_bytes=layer.output_bytes,
    )


def _kind_name(measurement: Measurement) -> str:
    """Return a name that `planaria plan --nodes NAME=8` can say."""
    if measurement.accelerator_kind == "cpu":
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", measurement.accelerator.lower()).strip("-") or "cuda"
