"""What the tests of the worker's mathematics share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Bits depend on the number of threads."""
    torch.set_num_threads(1)
