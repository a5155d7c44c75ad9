"""Streams of CUDA devices, for what must not wait behind the work of others."""

from contextlib import AbstractContextManager, nullcontext

import torch


def beside(device: torch.device) -> AbstractContextManager[object]:
    """A stream on which nothing waits for what the device computes meanwhile; nothing on CPUs.

    torch has 32 and gives them out in turn, to groups as well.
    """
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(stream)
