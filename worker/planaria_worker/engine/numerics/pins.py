"""Pin and record what must be the same on every node for the same bits (reproducibility.md)."""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import torch

ATTENTION_IMPLEMENTATION = "sdpa"
"""The families' attention kernel: on the CPU it is bitwise repeatable and 1.4 to 2.8 times as fast
as `eager`; `pin_numerics` leaves it only the kernels that are repeatable on CUDA as well."""

_LIBRARIES = ("torch", "transformers", "numpy", "numba", "llvmlite", "tokenizers")
_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
    "NVIDIA_TF32_OVERRIDE",
)


def pin_numerics(num_threads: int = 1) -> None:
    """Pins this process's arithmetic; call it once, before the first computation.

    Deterministic kernels only, a fixed number of threads, full float32 products, and of the
    attention kernels those that are repeatable.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once
    torch.set_num_threads(num_threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    _use_deterministic_algorithms()
    # Deterministic mode would write NaN into every new buffer: a pass over memory, for debugging.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def _use_deterministic_algorithms() -> None:
    """As torch's function of this name, which takes a second to import what torch.compile needs."""
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(True)
        return
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"  # read by that module
    torch.set_deterministic_debug_mode("error")


def fingerprint(device_type: str = "cpu", transport: str = "gloo") -> dict[str, str]:
    """Everything that the bits may depend on besides the job; nodes that differ do not mix.

    Keys are sorted, so two fingerprints are compared, and shown, line by line.
    """
    entries = {
        "attention": ATTENTION_IMPLEMENTATION,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": device_type,
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "processor": _processor(),
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "transport": transport,  # sums of floats depend on the order in which it adds them
    }
    entries |= {f"library {name}": version(name) for name in _LIBRARIES}
    entries["library torch"] = torch.__version__  # with its build
    entries |= {f"environment {name}": os.environ.get(name, "") for name in _VARIABLES}
    if device_type == "cuda":
        entries |= _gpu()
        if transport == "nccl":
            numbers: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            entries["nccl"] = ".".join(map(str, numbers))
    return dict(sorted(entries.items()))


def _gpu() -> dict[str, str]:
    """Kernels are chosen by the model, and by how many processors of it there are."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    cudnn: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {
        "gpu": properties.name,
        "gpu_processors": str(properties.multi_processor_count),
        "cuda": str(torch.version.cuda),
        "cudnn": str(cudnn),
    }


def _processor() -> str:
    """The processor's model as the kernel names it: kernels are chosen by it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "CPU part"):
                return value.strip()
    return platform.processor()
