"""What pins the bits, and what tells two nodes apart."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from planaria_worker.engine.numerics import pins

_CODE = """
import json
from planaria_worker.engine.numerics.pins import fingerprint, pin_numerics
import torch
pin_numerics(1)
pin_numerics(1)
tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
print(json.dumps([fingerprint(), torch.get_num_interop_threads(),
                  torch.are_deterministic_algorithms_enabled(), tf32]))
"""

_COMPILE = """
import sys
if sys.argv[1] == "before":
    import torch._inductor.config
from planaria_worker.engine.numerics.pins import pin_numerics
pin_numerics(1)
print("torch._inductor" in sys.modules)
import torch
import torch._inductor.config
print(torch._inductor.config.deterministic, torch.are_deterministic_algorithms_enabled())
"""


def _fingerprint(**environment: str) -> tuple[dict[str, str], int, bool, bool]:
    result = subprocess.run(
        [sys.executable, "-c", _CODE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    entries, interop, deterministic, tf32 = json.loads(result.stdout)
    return entries, interop, deterministic, tf32


def test_pinning_holds_and_other_kernels_show() -> None:
    entries, interop, deterministic, tf32 = _fingerprint()
    assert (interop, deterministic, tf32, entries["threads"]) == (1, True, False, "1")
    assert entries["environment CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert all(entries[name] for name in ("processor", "library torch", "cpu_capability"))
    assert list(entries) == sorted(entries)
    other, *_ = _fingerprint(ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE")
    different = {name for name in entries if entries[name] != other[name]}
    assert different >= {"environment ATEN_CPU_CAPABILITY", "environment MKL_CBWR"}


@pytest.mark.parametrize("imported", ["before", "behind"])
def test_user_compiled_code_is_pinned_too(imported: str) -> None:
    """But torch.compile, which takes a second to import, is not imported for it."""
    command = [sys.executable, "-c", _COMPILE, imported]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(imported == "before"), "True", "True"]


def test_the_fingerprint_names_what_the_bits_of_a_gpu_depend_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = SimpleNamespace(name="a GPU", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    plain = pins.fingerprint()
    over_gloo, over_nccl = (pins.fingerprint("cuda", by) for by in ("gloo_via_host", "nccl"))
    assert over_gloo.keys() - plain.keys() == {"gpu", "gpu_processors", "cuda", "cudnn"}
    assert (over_gloo["gpu"], over_gloo["gpu_processors"]) == ("a GPU", "132")
    assert over_nccl.keys() - over_gloo.keys() == {"nccl"}
    assert over_nccl["nccl"] == "2.29.7"
