"""What `planaria profile` asks of the part that can measure, and what it gets back.

The planner owns the profile's format and the cost model, the worker the accelerator, and neither
imports the other: the worker registers its function as the entry point `measure` of the group
`planaria.profilers`.
"""

from dataclasses import dataclass
from typing import Literal

PROFILERS = "planaria.profilers"
"""The group of entry points; its `measure` takes a JobSpec, a MeasurementPlan and whom to tell how
much is done, from 0 to 1, and returns a Measurement."""

AcceleratorKind = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """How thoroughly to measure."""

    accelerator_kind: AcceleratorKind = "auto"
    """`auto`: CUDA where a device is present."""
    num_passes: int = 10
    """Passes of each layer that count; some more warm it up."""
    num_steps: int = 5
    """Training steps of the whole model, on one accelerator, to check the cost model with."""
    max_step_microbatches: int = 8
    """Such a step has the job's microbatches, but at most so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Several measurements of one thing."""

    median_seconds: float
    spread: float
    """Distance between the quartiles, as a part of the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasurement:
    """One layer on one accelerator; bytes and passes are those of one microbatch."""

    name: str
    forward: Timing
    backward: Timing
    """With the addition of its gradients to the step's sum."""
    update: Timing
    """The gradient's norm and the optimizer, once per step; the cost model leaves it out."""
    parameter_bytes: int
    """Of every parameter that hosting this layer brings, a tied one included."""
    state_bytes: int
    """Parameters, gradients and optimizer state together."""
    activation_bytes: int
    output_bytes: int
    """None for the last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """A link between two accelerators of one node."""

    description: str
    bytes_per_second: float
    latency_seconds: float
    spread: float
    """Distance between the quartiles of the large messages' times, as a part of the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasurement:
    """Whole training steps of all layers on one accelerator."""

    num_microbatches: int
    step: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything a profile is made of."""

    accelerator: str
    """What it is, for people."""
    accelerator_kind: Literal["cpu", "cuda"]
    num_accelerators: int
    accelerator_memory_bytes: int
    layers: tuple[LayerMeasurement, ...]
    """All layers in order; those that are alike share one measurement."""
    link: LinkMeasurement
    step: StepMeasurement | None
    """None when it was not asked for, or the model does not fit on one accelerator."""
