"""Getting ready before the first step: compile, measure, and hide what is there from gc."""

import gc
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from planaria_worker.engine.job import Job
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.engine.numerics.norm import squared_norm
from planaria_worker.engine.numerics.optimizer import update
from planaria_worker.models.stage import Microbatch, Stage, build_stage, hosted_layers
from planaria_worker.models.state import empty_state

_NUM_MEASURED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """What a layer takes for one microbatch."""

    forward_seconds: float
    backward_seconds: float
    """With the rounding of its gradients into the sum."""


def warm_up(job: Job) -> dict[int, LayerSeconds]:
    """Runs every kind of layer and the update once, so that the first step is like any other.

    Returns:
        Seconds of each layer; those that are alike are measured once.
    """
    kinds: dict[object, LayerSeconds] = {}
    measured: dict[int, LayerSeconds] = {}
    for layer, layout in enumerate(job.layouts):
        is_end = layer in (0, job.num_layers - 1)
        kind = layer if is_end else tuple(tensor.shape for tensor in layout.tensors)
        if kind not in kinds:
            kinds[kind] = _measure(job, layer)
        measured[layer] = kinds[kind]
    _freeze()
    return measured


def _measure(job: Job, layer: int) -> LayerSeconds:
    states = {
        hosted: empty_state(
            job.layouts[hosted], device=str(job.device), compute_dtype=job.compute_dtype
        )
        for hosted in hosted_layers(job.model, layer, 1)
    }
    stage = build_stage(job.model, layer, 1, states, seed=job.seed)
    layouts = [state.layout for state in states.values()]
    sums = GradientSums(layouts, job.accumulation, str(job.device))
    _pass(job, stage, sums)
    times = [_pass(job, stage, sums) for _ in range(_NUM_MEASURED)]
    for hosted, state in states.items():  # compiles what a commit needs
        squared_norm(state.layout, sums.sums[hosted], job.accumulation.unit)
        update(state, sums.sums[hosted], config=job.optimizer, scale=0.0, step=0)
    return LayerSeconds(
        forward_seconds=statistics.median(forward for forward, _ in times),
        backward_seconds=statistics.median(backward for _, backward in times),
    )


def _pass(job: Job, stage: Stage, sums: GradientSums) -> tuple[float, float]:
    """Seconds of one forward and one backward pass."""
    inputs, targets = _inputs(job, stage), _token_ids(job)
    start = _now(job)
    outputs = stage(inputs, Microbatch(step=0, index=0))
    loss = summed_cross_entropy(outputs, targets) if stage.is_last else outputs.sum()
    middle = _now(job)
    torch.autograd.backward(loss)
    sums.take(stage.leaves)
    return middle - start, _now(job) - middle


def _inputs(job: Job, stage: Stage) -> Tensor:
    if stage.is_first:
        return _token_ids(job)
    shape = (job.microbatch_size, job.dataset.sequence_length, job.model_config.hidden_size)
    hidden = torch.full(shape, 0.5, dtype=job.compute_dtype, device=job.device)
    return hidden.requires_grad_()


def _token_ids(job: Job) -> Tensor:
    shape = (job.microbatch_size, job.dataset.sequence_length)
    return torch.zeros(shape, dtype=torch.int64, device=job.device)


def _now(job: Job) -> float:
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)
    return time.perf_counter()


def _freeze() -> None:
    """A collection with torch loaded takes 0.2 to 0.8 s: the modules are never garbage."""
    gc.collect()
    gc.freeze()
