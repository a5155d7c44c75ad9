"""The digest of parameters, the same whatever plan trained them (ARCHITECTURE.md, final_digest)."""

import hashlib
import sys
from collections.abc import Mapping

import numpy as np
from torch import Tensor


def layer_digest(tensors: Mapping[str, Tensor]) -> bytes:
    """SHA-256 over a layer's parameters sorted by name: name, dtype, shape, raw bytes.

    The shape is little-endian int64, the bytes little-endian in row-major order.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        values = tensors[name].detach().cpu().contiguous().numpy()
        if sys.byteorder == "big":
            values = values.byteswap()
        digest.update(name.encode())
        digest.update(str(values.dtype).encode())
        digest.update(np.asarray(values.shape, dtype="<i8").tobytes())
        digest.update(values.data)
    return digest.digest()
