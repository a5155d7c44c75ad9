"""Seconds and bytes of each layer; those that are alike are measured once."""

from collections.abc import Callable
from dataclasses import replace

from planaria_common.measurement import LayerMeasurement
from planaria_worker.engine.job import Job
from planaria_worker.engine.process.layer_timing import SingleLayer, kinds_of_layers
from planaria_worker.models.stage import hosted_layers
from planaria_worker.models.state import initial_state
from planaria_worker.profiling.timing import timing

_NUM_WARM_UP = 2


def measure_layers(
    job: Job, num_passes: int, one_done: Callable[[], None] = lambda: None
) -> tuple[LayerMeasurement, ...]:
    """All layers of a job in order, each run by itself on the job's device.

    Args:
        job: what to measure.
        num_passes: how often each layer runs, besides its warm-up.
        one_done: called after each layer measured: once for all that are alike.
    """
    kinds = kinds_of_layers(job)
    measured = {}
    for kind in sorted(set(kinds)):
        measured[kind] = _measure(job, kind, num_passes)
        one_done()
    return tuple(
        replace(measured[kind], name=_name(layer, job.num_layers))
        for layer, kind in enumerate(kinds)
    )


def _measure(job: Job, layer: int, num_passes: int) -> LayerMeasurement:
    # Initial values, not zeros: multiplying zeros costs a GPU less power, and so less time.
    states = {
        hosted: initial_state(
            job.model,
            hosted,
            seed=job.seed,
            device=str(job.device),
            compute_dtype=job.compute_dtype,
        )
        for hosted in hosted_layers(job.model, layer, 1)
    }
    alone = SingleLayer(job, layer, states)
    for _ in range(_NUM_WARM_UP):
        alone.run()
        alone.update()
    activation_bytes, output_bytes = alone.activation_and_output_bytes()
    passes = [alone.run() for _ in range(num_passes)]
    return LayerMeasurement(
        name=_name(layer, job.num_layers),
        forward=timing([each.forward_seconds for each in passes]),
        backward=timing([each.backward_seconds for each in passes]),
        update=timing([alone.update() for _ in range(num_passes)]),
        parameter_bytes=alone.parameter_bytes,
        state_bytes=alone.state_bytes,
        activation_bytes=activation_bytes,
        output_bytes=output_bytes,
    )


def _name(layer: int, num_layers: int) -> str:
    """As `planaria_common.model_sizes` names layers."""
    if layer == 0:
        return "embedding"
    return "head" if layer == num_layers - 1 else f"block {layer - 1}"
