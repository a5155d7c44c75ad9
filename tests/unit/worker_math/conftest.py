"""What the tests of the worker's mathematics share."""

import pytest
import torch

from planaria_worker.engine.numerics import kernels


@pytest.fixture(scope="session", autouse=True)
def _compiled_kernels() -> None:
    kernels.warm_up()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Bits depend on the number of threads."""
    torch.set_num_threads(1)
