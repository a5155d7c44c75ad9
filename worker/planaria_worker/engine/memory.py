"""Allocations that fail, on the host or on the device."""

import errno

import torch

_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory")
"""What torch and NCCL say where they raise a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error comes from memory that could not be had."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return True
        if isinstance(cause, RuntimeError) and any(w in str(cause).lower() for w in _WORDS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def give_back_freed(device: torch.device) -> None:
    """Let others than torch, such as NCCL, have the memory that was freed on a GPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
