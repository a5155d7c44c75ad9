"""A measurement that nobody made."""

from dataclasses import replace

from planaria_common.measurement import (
    LayerMeasurement,
    LinkMeasurement,
    Measurement,
    StepMeasurement,
    Timing,
)

_LAYER = LayerMeasurement(
    name="block 0",
    forward=Timing(median_seconds=2e-3, spread=0.1),
    backward=Timing(median_seconds=4e-3, spread=0.2),
    update=Timing(median_seconds=1e-3, spread=0.0),
    parameter_bytes=400,
    state_bytes=2400,
    activation_bytes=1000,
    output_bytes=64,
)


def measurement() -> Measurement:
    """Two ends and two blocks, each 2 ms forward and 4 ms backward."""
    return Measurement(
        accelerator="NVIDIA H200 (X)",
        accelerator_kind="cuda",
        num_accelerators=2,
        accelerator_memory_bytes=10**9,
        layers=(
            replace(_LAYER, name="embedding"),
            _LAYER,
            replace(_LAYER, name="block 1"),
            replace(_LAYER, name="head", output_bytes=0),
        ),
        link=LinkMeasurement(
            description="a wire", bytes_per_second=1e9, latency_seconds=1e-5, spread=0.1
        ),
        step=StepMeasurement(num_microbatches=5, step=Timing(median_seconds=0.15, spread=0.04)),
    )
