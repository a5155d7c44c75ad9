"""What pins the bits, and what tells two nodes apart."""

import json
import os
import subprocess
import sys

_CODE = """
import json
from planaria_worker.engine.numerics.pins import fingerprint, pin_numerics
import torch
pin_numerics(1)
pin_numerics(1)
print(json.dumps([fingerprint(), torch.get_num_interop_threads(),
                  torch.are_deterministic_algorithms_enabled()]))
"""


def _fingerprint(**environment: str) -> tuple[dict[str, str], int, bool]:
    result = subprocess.run(
        [sys.executable, "-c", _CODE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    entries, interop, deterministic = json.loads(result.stdout)
    return entries, interop, deterministic


def test_pinning_holds_and_other_kernels_show() -> None:
    entries, interop, deterministic = _fingerprint()
    assert (interop, deterministic, entries["threads"]) == (1, True, "1")
    assert all(entries[name] for name in ("processor", "library torch", "cpu_capability"))
    assert list(entries) == sorted(entries)
    other, *_ = _fingerprint(ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE")
    different = {name for name in entries if entries[name] != other[name]}
    assert different >= {"environment ATEN_CPU_CAPABILITY", "environment MKL_CBWR"}
