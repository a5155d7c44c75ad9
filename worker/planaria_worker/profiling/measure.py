"""What `planaria profile` measures with: this process, and one helper for the link."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil
import torch

from planaria.job import JobSpec
from planaria_common.errors import ErrorReason, PlanariaError, invalid
from planaria_common.measurement import (
    AcceleratorKind,
    Measurement,
    MeasurementPlan,
)
from planaria_common.model_config import ModelConfig
from planaria_common.model_sizes import LayerSize, layer_sizes
from planaria_worker.engine.data.dataset import Dataset
from planaria_worker.engine.data.token_file import TokenFile
from planaria_worker.engine.job import Job, make_job, model_config
from planaria_worker.engine.numerics import kernels
from planaria_worker.engine.numerics.pins import pin_numerics
from planaria_worker.engine.process.layer_timing import kinds_of_layers
from planaria_worker.profiling.layers import measure_layers
from planaria_worker.profiling.links import measure_link
from planaria_worker.profiling.steps import measure_steps

_MIN_SEQUENCES = 64


def measure_job(
    spec: JobSpec, plan: MeasurementPlan, tell: Callable[[float], None] = lambda _fraction: None
) -> Measurement:
    """Measures on one accelerator, with the arithmetic that engines are pinned to.

    The job's data need not be here: random tokens take as long as real ones.

    Args:
        spec: the job.
        plan: how thoroughly to measure.
        tell: called with how much is done, from 0 to 1, after each layer and each step.

    Raises:
        PlanariaError: INVALID_ARGUMENT for an accelerator that is not there, INVALID_JOB for a
            model that cannot be built, MODEL_DOES_NOT_FIT when a single layer is too large,
            UNAVAILABLE when the link could not be measured.
    """
    device = _device(plan.accelerator_kind)
    try:
        job = open_workload(spec, device)
        sizes = _layer_sizes(spec, job)
    except ValueError as error:
        raise PlanariaError(
            ErrorReason.INVALID_JOB, str(error), {"field": str(error).partition(":")[0]}
        ) from None
    pin_numerics()
    kernels.warm_up()
    _check_fit(sizes, _free_bytes(device))
    num_steps = plan.num_steps if _needed_bytes(sizes) <= _free_bytes(device) else 0
    parts = itertools.count(1)
    num_parts = len(set(kinds_of_layers(job))) + (1 + num_steps if num_steps else 0)

    def one_done() -> None:
        tell(next(parts) / num_parts)

    layers = measure_layers(job, plan.num_passes, one_done)
    step = None
    if num_steps:
        step = measure_steps(job, num_steps, plan.max_step_microbatches, one_done)
    return Measurement(
        accelerator=_description(device),
        accelerator_kind="cuda" if device.type == "cuda" else "cpu",
        num_accelerators=torch.cuda.device_count() if device.type == "cuda" else 1,
        accelerator_memory_bytes=_memory_bytes(device),
        layers=layers,
        link=measure_link(device),
        step=step,
    )


def _layer_sizes(spec: JobSpec, job: Job) -> tuple[LayerSize, ...]:
    return layer_sizes(
        _config(spec),
        job.microbatch_size,
        job.dataset.sequence_length,
        dtype=spec.training.dtype,
        reproducible=job.is_reproducible,
        activation_checkpointing=job.activation_checkpointing,
    )


def _check_fit(sizes: Sequence[LayerSize], free_bytes: int) -> None:
    """Measuring must not take a machine's last memory: the system would end some process for it."""
    largest = max(sizes, key=lambda size: _needed_bytes([size]))
    needed = _needed_bytes([largest])
    if needed > free_bytes:
        raise PlanariaError(
            ErrorReason.MODEL_DOES_NOT_FIT,
            f"{largest.name} needs {needed} bytes to be measured, and {free_bytes} are free here;"
            " a smaller training.microbatch_size needs less, and --accelerator NAME none",
            {"layer": largest.name, "need": str(needed), "have": str(free_bytes)},
        )


def _needed_bytes(sizes: Sequence[LayerSize]) -> int:
    """With room for a second microbatch, and for what a pass holds for a moment."""
    return sum(size.state_bytes + 2 * size.activation_bytes for size in sizes)


def _device(kind: AcceleratorKind) -> torch.device:
    if kind == "cuda" and not torch.cuda.is_available():
        problem = "cuda: torch finds no CUDA device on this machine; use cpu or auto"
        raise invalid("--device", problem)
    if kind == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", 0)


def open_workload(spec: JobSpec, device: torch.device) -> Job:
    """The job with random tokens for its data.

    Raises:
        ValueError: a field is wrong; names it.
    """
    length = spec.data.sequence_length
    num_sequences = max(_MIN_SEQUENCES, spec.training.microbatch_size)
    config = _config(spec)
    tokens = np.random.default_rng(0).integers(
        config.vocab_size, size=num_sequences * length + 1, dtype=np.uint32
    )
    file = TokenFile(
        path=Path(),
        tokens=tokens,
        max_token=config.vocab_size - 1,
        source=b"",
    )
    spec = spec.model_copy(update={"evaluation": None})  # steps as they mostly are
    return make_job("profile", spec, Dataset(file=file, sequence_length=length), device)


def _config(spec: JobSpec) -> ModelConfig:
    config = model_config(spec)
    if config is None:
        raise ValueError(
            "model.import_path: its engines measure such a model when they start; "
            "`planaria profile` cannot"
        )
    return config


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
        return total
    return psutil.virtual_memory().total


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps to use again counts as free
        free, _total = torch.cuda.mem_get_info(device)
        return free
    return psutil.virtual_memory().available


def _description(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the CPU, {torch.get_num_threads()} thread"
