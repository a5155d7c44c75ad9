"""The loss: cross entropy summed over tokens, and as an integer, which adds up in any order."""

import math

from torch import Tensor
from torch.nn import functional

UNITS_PER_NAT = 1 << 24
"""Losses travel in integers of 2^-24 nats."""


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy summed over all tokens, in float32, a scalar to call `backward` on.

    `logits` are [batch, sequence, vocabulary], `targets` token ids [batch, sequence].
    """
    return functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), reduction="sum"
    )


def loss_units(loss: float) -> int | None:
    """A microbatch's summed loss in units of 2^-24 nats; None if it is not finite."""
    return round(loss * UNITS_PER_NAT) if math.isfinite(loss) else None


def mean_loss(units: int, num_tokens: int) -> float:
    """Nats per token, from the sum of all microbatches' loss_units."""
    return units / UNITS_PER_NAT / num_tokens
