"""AdamW over the flat buffers of one layer at a time, and its learning rate.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019). Every operation rounds
once to float32, so the same numbers come out on the CPU (one fused pass) and from torch operations.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planaria_worker.engine.numerics import kernels
from planaria_worker.models.state import LayerState

CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWConfig:
    """`training.optimizer` of a job."""

    learning_rate: float
    num_steps: int
    """Steps of the whole job: where the cosine ends."""
    warmup_steps: int = 0
    schedule: Literal["cosine", "constant"] = "cosine"
    weight_decay: float = 0.0
    """Of matrices; biases and norms do not decay."""
    clip_norm: float | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8


def learning_rate(config: AdamWConfig, step: int) -> float:
    """The rate of a step (from 0): linear warm-up, then constant or a half cosine down to zero."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    progress = (step - config.warmup_steps) / max(1, config.num_steps - config.warmup_steps)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def gradient_scale(config: AdamWConfig, *, unit: float, num_tokens: int, norm: float) -> float:
    """What a gradient sum is multiplied with: to the mean over tokens, clipped by global norm.

    `norm` is that of the mean gradient (norm.global_norm).
    """
    scale = unit / num_tokens
    if config.clip_norm is None:
        return scale
    return scale * min(1.0, config.clip_norm / (norm + CLIP_EPSILON))


def update(
    state: LayerState, total: Tensor, *, config: AdamWConfig, scale: float, step: int
) -> None:
    """Applies step `step` (from 0) to one layer, in place.

    `total` is the layer's whole gradient sum, flat, and `scale` the step's gradient_scale.
    """
    layout = state.layout
    sums, averages = layout.views(total), layout.views(state.exp_avg)
    averages_sq = layout.views(state.exp_avg_sq)
    apply = _update_cpu if total.device.type == "cpu" else _update_torch
    for name, parameters in layout.views(state.parameters).items():
        coefficients = adamw_coefficients(config, step, decays=parameters.dim() > 1)
        apply(parameters, averages[name], averages_sq[name], sums[name], scale, coefficients)
    state.refresh()


def adamw_coefficients(config: AdamWConfig, step: int, *, decays: bool) -> NDArray[np.float32]:
    """decay, beta1, 1 - beta1, beta2, 1 - beta2, step size, 1/sqrt(bias correction 2), epsilon."""
    rate = learning_rate(config, step)
    correction1 = 1.0 - config.beta1 ** (step + 1)
    correction2 = 1.0 - config.beta2 ** (step + 1)
    return np.array(
        [
            1.0 - rate * config.weight_decay if decays else 1.0,
            config.beta1,
            1.0 - config.beta1,
            config.beta2,
            1.0 - config.beta2,
            rate / correction1,
            1.0 / math.sqrt(correction2),
            config.epsilon,
        ],
        dtype=np.float32,
    )


def _update_cpu(
    parameters: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    total: Tensor,
    scale: float,
    coefficients: NDArray[np.float32],
) -> None:
    kernels.adamw(
        parameters.view(-1).numpy(),
        exp_avg.view(-1).numpy(),
        exp_avg_sq.view(-1).numpy(),
        total.view(-1).numpy(),
        scale,
        coefficients,
    )


def _update_torch(
    parameters: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    total: Tensor,
    scale: float,
    coefficients: NDArray[np.float32],
) -> None:
    """kernels.adamw in torch operations, one rounding each."""
    decay, beta1, rest1, beta2, rest2, step_size, correction, epsilon = coefficients.tolist()
    gradient = (total.double() * scale).to(torch.float32)
    exp_avg.mul_(beta1).add_(gradient * rest1)
    exp_avg_sq.mul_(beta2).add_(gradient * gradient * rest2)
    denominator = exp_avg_sq.sqrt().mul_(correction).add_(epsilon)
    parameters.mul_(decay).sub_((exp_avg * step_size).div_(denominator))
