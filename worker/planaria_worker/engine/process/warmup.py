"""Getting ready before the first step: compile, measure, and hide what is there from gc."""

import gc
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from planaria_worker.engine.job import Job
from planaria_worker.engine.process.layer_timing import (
    LayerCost,
    PassSeconds,
    SingleLayer,
    kinds_of_layers,
)
from planaria_worker.models.stage import hosted_layers
from planaria_worker.models.state import empty_state

_NUM_MEASURED = 3
_NUM_PRODUCTS = 8
_PRODUCT_SIZES = {"cpu": 512, "cuda": 8192}
"""Large enough for the full rate, and done in milliseconds."""


def warm_up(job: Job, forward_flops: Sequence[int] = ()) -> dict[int, LayerCost]:
    """Runs every kind of layer and the update once, so that the first step is like any other.

    Layers take as long as their quickest pass: engines that start together disturb one another.

    Args:
        job: what is to be trained.
        forward_flops: operations of each layer's forward pass, if they are known: to count them
            torch imports its compiler, which takes a second.

    Returns:
        The cost of each layer; those that are alike are measured once.
    """
    kinds = kinds_of_layers(job)
    known = dict(enumerate(forward_flops)) if len(forward_flops) == job.num_layers else {}
    measured = {kind: _measure(job, kind, known.get(kind)) for kind in sorted(set(kinds))}
    _freeze()
    return {layer: measured[kind] for layer, kind in enumerate(kinds)}


def _measure(job: Job, layer: int, forward_flops: int | None) -> LayerCost:
    device, dtype = str(job.device), job.compute_dtype
    states = {
        hosted: empty_state(job.layouts[hosted], device=device, compute_dtype=dtype)
        for hosted in hosted_layers(job.model, layer, 1)
    }
    alone = SingleLayer(job, layer, states)
    alone.run()
    passes = [alone.run() for _ in range(_NUM_MEASURED)]
    alone.update()  # compiles what a commit needs
    activation_bytes, output_bytes = alone.activation_and_output_bytes()
    return LayerCost(
        seconds=PassSeconds(
            forward_seconds=min(each.forward_seconds for each in passes),
            backward_seconds=min(each.backward_seconds for each in passes),
        ),
        parameter_bytes=alone.parameter_bytes,
        state_bytes=alone.state_bytes,
        activation_bytes=activation_bytes,
        output_bytes=output_bytes,
        forward_flops=alone.forward_flops() if forward_flops is None else forward_flops,
    )


def peak_flops_per_second(job: Job) -> float:
    """The best rate of some products of large matrices: what utilisation is measured against."""
    size = _PRODUCT_SIZES[job.device.type]
    left, right = torch.ones((2, size, size), dtype=job.compute_dtype, device=job.device)
    seconds = min(_product_seconds(left, right) for _ in range(_NUM_PRODUCTS))
    return 2 * size**3 / seconds


def _product_seconds(left: Tensor, right: Tensor) -> float:
    start = time.perf_counter()
    torch.mm(left, right)
    if left.device.type == "cuda":
        torch.cuda.synchronize(left.device)
    return time.perf_counter() - start


def _freeze() -> None:
    """A collection with torch loaded takes 0.2 to 0.8 s: the modules are never garbage."""
    gc.collect()
    gc.freeze()
