"""What a test says that needs a GPU where there is none."""

import pytest


def require_gpus(count: int) -> None:
    """Skip the test unless torch can use so many CUDA devices."""
    import torch  # not while tests are collected

    found = torch.cuda.device_count()
    if found < count:
        pytest.skip(f"no CUDA device: needs {count}, and a build of torch for CUDA; found {found}")
