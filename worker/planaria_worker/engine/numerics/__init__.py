"""The arithmetic of a step: fixed-point sums, norms, the optimizer, digests, pinned numerics."""
