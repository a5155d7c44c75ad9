"""The gradient's norm, in one fixed order, independent of the rank."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from planaria_worker.engine.numerics import kernels
from planaria_worker.models.layout import LayerLayout


def squared_norm(layout: LayerLayout, total: Tensor, unit: float) -> float:
    """The squared norm of one layer's gradient sum: its tensors in the order of their names.

    `unit` is the accumulation's. On the CPU a tensor's squares are added in the order that
    kernels.squared_norm defines, on CUDA in torch's, which is fixed for a shape and a kind of GPU.
    """
    result = 0.0
    for tensor in layout.views(total).values():
        if total.device.type == "cpu":
            result += float(kernels.squared_norm(tensor.reshape(-1).numpy()))
        else:
            result += float(torch.sum(tensor.double().square()))
    return result * unit * unit


def global_norm(squared_norms: Mapping[int, float], num_tokens: int) -> float:
    """The norm of the mean gradient per token, from every layer's squared norm of the sum."""
    total = 0.0
    for layer in sorted(squared_norms):
        total += squared_norms[layer]
    return math.sqrt(total) / num_tokens
