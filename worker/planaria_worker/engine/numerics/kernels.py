"""The loops over parameters on the CPU, each fused into one pass by numba.

Without `fastmath` numba neither reorders nor contracts: every operation rounds once, as its torch
counterpart does, so torch operations (on CUDA, and in the tests' oracle) give the same bits.
"""

import numpy as np
from numpy.typing import NDArray

from planaria_worker.engine.numerics.compiled import compiled

NUM_LANES = 16
"""Partial sums of a squared norm; part of its definition."""

Float32Array = NDArray[np.float32]
SumArray = NDArray[np.int64] | Float32Array


@compiled()
def add_fixed_point(
    total: NDArray[np.int64], gradient: Float32Array, scale: float, limit: float, is_first: bool
) -> bool:
    """Adds round(gradient * scale), or puts it there if it is the first.

    Returns:
        Whether |gradient * scale| < limit held for all elements.
    """
    num_outside = 0
    for i in range(total.size):
        scaled = np.float64(gradient[i]) * scale
        num_outside += not abs(scaled) < limit  # NaN counts
        rounded = np.int64(np.rint(scaled))
        total[i] = rounded if is_first else total[i] + rounded
    return num_outside == 0


@compiled()
def squared_norm(values: SumArray) -> float:
    """Sum of squares in float64: lane j adds elements j, j + 16, ...; then the lanes in order."""
    lanes = np.zeros(NUM_LANES, np.float64)
    num_complete = values.size // NUM_LANES * NUM_LANES
    for start in range(0, num_complete, NUM_LANES):
        for lane in range(NUM_LANES):
            value = np.float64(values[start + lane])
            lanes[lane] += value * value
    for lane in range(values.size - num_complete):
        value = np.float64(values[num_complete + lane])
        lanes[lane] += value * value
    total = 0.0
    for lane in range(NUM_LANES):
        total += lanes[lane]
    return total


@compiled()
def adamw(
    parameters: Float32Array,
    exp_avg: Float32Array,
    exp_avg_sq: Float32Array,
    total: SumArray,
    scale: float,
    coefficients: Float32Array,
) -> None:
    """One AdamW step in place; `coefficients` as optimizer.adamw_coefficients orders them."""
    decay, beta1, rest1, beta2, rest2, step_size, correction, epsilon = coefficients
    for i in range(parameters.size):
        gradient = np.float32(np.float64(total[i]) * scale)
        average = beta1 * exp_avg[i] + rest1 * gradient
        average_sq = beta2 * exp_avg_sq[i] + rest2 * (gradient * gradient)
        exp_avg[i] = average
        exp_avg_sq[i] = average_sq
        denominator = np.sqrt(average_sq) * correction + epsilon
        parameters[i] = parameters[i] * decay - step_size * average / denominator


def warm_up() -> None:
    """Compiles the kernels, or loads them from disk, so that no step has to wait for it."""
    values = np.zeros(NUM_LANES, np.float32)
    integers = np.zeros(NUM_LANES, np.int64)
    coefficients = np.zeros(8, np.float32)
    add_fixed_point(integers, values, 1.0, 1.0, is_first=False)
    for total in (values.copy(), integers):
        squared_norm(total)
        adamw(values, values.copy(), values.copy(), total, 1.0, coefficients)
