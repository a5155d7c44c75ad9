"""Initial parameters, each from a hash of (seed, name) alone, on every engine."""

import numpy as np
import torch
from torch import Tensor

from planaria_worker.engine.numerics.rng import derive_key


def initial_tensor(seed: int, name: str, shape: tuple[int, ...], deviation: float) -> Tensor:
    """A float32 tensor on the CPU: matrices normal, biases zero, other vectors (norms) one.

    NumPy's counter-based Philox rather than torch's generator, whose normal numbers differ with the
    vector width of the processor.
    """
    if len(shape) < 2:
        fill = 0.0 if name.endswith("bias") else 1.0
        return torch.full(shape, fill)
    generator = np.random.Generator(np.random.Philox(key=derive_key(seed, "init", name)))
    values = generator.standard_normal(shape, dtype=np.float32)
    values *= np.float32(deviation)
    return torch.from_numpy(values)
