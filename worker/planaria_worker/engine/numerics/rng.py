"""Random keys from counters, never from a rank's history."""

import hashlib

import torch


def derive_key(seed: int, *path: int | str) -> int:
    """A 128-bit key that depends on the seed and the path, for example ("dropout", step, layer)."""
    text = "/".join(map(repr, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def derive_seed(seed: int, *path: int | str) -> int:
    """Like derive_key, 63 bits: what torch takes as a seed."""
    return derive_key(seed, *path) >> 65


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds what draws on the host and on this device.

    `torch.manual_seed` does so for every kind of accelerator, and notes a stack trace for each kind
    that the machine lacks: 0.3 ms for each layer of each microbatch.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
