"""CUDA streams for operations that must not wait for other work of the device."""

from contextlib import AbstractContextManager, nullcontext

import torch


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """Use a stream on which nothing waits for the device's computation; nothing on CPUs.

    torch has 32 and gives them out in turn, to groups as well.
    """
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(stream)
