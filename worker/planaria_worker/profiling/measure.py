"""What `planaria profile` measures with: this process, and one helper for the link."""

from pathlib import Path

import numpy as np
import psutil
import torch

from planaria.job import JobSpec
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.measurement import (
    AcceleratorKind,
    LayerMeasurement,
    Measurement,
    MeasurementPlan,
    StepMeasurement,
)
from planaria_worker.engine.data.dataset import Dataset
from planaria_worker.engine.data.token_file import TokenFile
from planaria_worker.engine.job import Job, make_job
from planaria_worker.engine.numerics import kernels
from planaria_worker.engine.numerics.pins import pin_numerics
from planaria_worker.profiling.layers import measure_layers
from planaria_worker.profiling.links import measure_link
from planaria_worker.profiling.steps import measure_steps

_MIN_SEQUENCES = 64


def measure_job(spec: JobSpec, plan: MeasurementPlan) -> Measurement:
    """Measures on one accelerator, with the arithmetic that engines are pinned to.

    The job's data need not be here: random tokens take as long as real ones.

    Raises:
        PlanariaError: INVALID_ARGUMENT for an accelerator that is not there, INVALID_JOB for a
            model that cannot be built, MODEL_DOES_NOT_FIT when a single layer is too large,
            UNAVAILABLE when the link could not be measured.
    """
    device = _device(plan.accelerator_kind)
    job = open_workload(spec, device)
    pin_numerics()
    kernels.warm_up()
    memory_bytes = _memory_bytes(device)
    layers = _layers(job, plan, memory_bytes)
    return Measurement(
        accelerator=_description(device),
        accelerator_kind="cuda" if device.type == "cuda" else "cpu",
        num_accelerators=torch.cuda.device_count() if device.type == "cuda" else 1,
        accelerator_memory_bytes=memory_bytes,
        layers=layers,
        link=measure_link(device),
        step=_steps(job, plan, layers, memory_bytes),
    )


def _device(kind: AcceleratorKind) -> torch.device:
    if kind == "cuda" and not torch.cuda.is_available():
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            "--device: cuda: torch finds no CUDA device on this machine; use cpu or auto",
            {"field": "--device"},
        )
    if kind == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", 0)


def open_workload(spec: JobSpec, device: torch.device) -> Job:
    """The job with random tokens for its data.

    Raises:
        PlanariaError: INVALID_JOB, naming the field.
    """
    length = spec.data.sequence_length
    num_sequences = max(_MIN_SEQUENCES, spec.training.microbatch_size)
    tokens = np.random.default_rng(0).integers(
        spec.model.vocab_size, size=num_sequences * length + 1, dtype=np.uint32
    )
    file = TokenFile(
        path=Path(),
        tokens=tokens,
        file_starts=np.array([0, len(tokens)], dtype=np.uint64),
        max_token=spec.model.vocab_size - 1,
        source=b"",
    )
    try:
        return make_job("profile", spec, Dataset(file=file, sequence_length=length), device)
    except ValueError as error:
        raise PlanariaError(
            ErrorReason.INVALID_JOB, str(error), {"field": str(error).partition(":")[0]}
        ) from None


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
        return total
    return psutil.virtual_memory().total


def _description(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the CPU, {torch.get_num_threads()} thread"


def _layers(job: Job, plan: MeasurementPlan, memory_bytes: int) -> tuple[LayerMeasurement, ...]:
    try:
        return measure_layers(job, plan.num_passes)
    except (torch.OutOfMemoryError, MemoryError):
        raise PlanariaError(
            ErrorReason.MODEL_DOES_NOT_FIT,
            f"a layer does not fit on the accelerator, which has {memory_bytes} bytes; a smaller"
            " training.microbatch_size or data.sequence_length might",
            {"have": str(memory_bytes)},
        ) from None


def _steps(
    job: Job, plan: MeasurementPlan, layers: tuple[LayerMeasurement, ...], memory_bytes: int
) -> StepMeasurement | None:
    """None when none is wanted, or all layers together do not fit."""
    needed = sum(layer.state_bytes + layer.activation_bytes for layer in layers)
    if not plan.num_steps or needed > memory_bytes:
        return None
    try:
        return measure_steps(job, plan.num_steps, plan.max_step_microbatches)
    except torch.OutOfMemoryError:
        return None
