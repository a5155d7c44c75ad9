"""What this machine offers, asked without importing torch."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.agent.settings import WorkerSettings
from planaria_worker.engine_config import AcceleratorKind, Transport

_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_USABLE_SHARE = 0.9
"""Of a GPU's memory: the rest is for CUDA itself, NCCL's buffers, and what lies between tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The accelerators of a node; `memory_bytes` is that of one of them."""

    num_accelerators: int
    accelerator_kind: AcceleratorKind
    memory_bytes: int
    transport: Transport
    """What moves tensors from and to its engines."""


def describe_machine(settings: WorkerSettings) -> Machine:
    """Tell what the node offers: the settings first, then what the machine says.

    Raises:
        InvalidArgumentError: CUDA was asked for and no NVIDIA driver is loaded, or NCCL without
            CUDA; or nobody says how much memory a GPU has.
    """
    kind = _accelerator_kind(settings)
    if kind == "cuda" and not _NVIDIA_DRIVER.exists():
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            "--accelerator-kind cuda: no NVIDIA driver is loaded on this machine; use cpu or auto",
            {"field": "--accelerator-kind"},
        )
    memory = settings.accelerator_memory_bytes or _memory_bytes(kind, settings.num_accelerators)
    return Machine(
        num_accelerators=settings.num_accelerators,
        accelerator_kind=kind,
        memory_bytes=memory,
        transport=_transport(settings, kind),
    )


def _accelerator_kind(settings: WorkerSettings) -> AcceleratorKind:
    if settings.accelerator_kind != "auto":
        return settings.accelerator_kind
    return "cuda" if _NVIDIA_DRIVER.exists() else "cpu"


def _transport(settings: WorkerSettings, kind: AcceleratorKind) -> Transport:
    if kind == "cuda":
        return "gloo_via_host" if settings.transport == "gloo" else "nccl"
    if settings.transport == "nccl":
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            "--transport nccl: NCCL moves tensors between CUDA devices only, and the accelerator "
            "kind is cpu; use gloo or auto",
            {"field": "--transport"},
        )
    return "gloo"


def _memory_bytes(kind: str, num_accelerators: int) -> int:
    if kind == "cuda":
        return int(_gpu_memory_bytes() * _USABLE_SHARE)
    return psutil.virtual_memory().total // num_accelerators


def _gpu_memory_bytes() -> int:
    """Of the smallest GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        sizes = [int(line) for line in answer.stdout.split() if line.isdigit()]
    except (OSError, subprocess.TimeoutExpired):
        sizes = []
    if not sizes:
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            "--accelerator-memory-bytes: nvidia-smi does not tell how much memory a GPU of this "
            "machine has; give it",
            {"field": "--accelerator-memory-bytes"},
        )
    return min(sizes) * 2**20
