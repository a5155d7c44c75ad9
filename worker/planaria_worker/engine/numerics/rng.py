"""Random keys from counters, never from a rank's history."""

import hashlib


def derive_key(seed: int, *path: int | str) -> int:
    """A 128-bit key that depends on the seed and the path, for example ("dropout", step, layer)."""
    text = "/".join(map(repr, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def derive_seed(seed: int, *path: int | str) -> int:
    """Like derive_key, 63 bits: what torch takes as a seed."""
    return derive_key(seed, *path) >> 65
