"""Sums of gradients that do not depend on who adds what to whom (ALGORITHMS.md 8).

Reproducible mode rounds each microbatch's gradient, half to even, to a multiple of 2^-u and adds
integers: any order and any grouping gives the same bits. The default mode adds floats.

Every gradient here is that of the loss summed over tokens, unscaled; the step's token count divides
once, after the sum.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from planaria_worker.engine.numerics import kernels
from planaria_worker.models.layout import LayerLayout
from planaria_worker.models.stage import Leaf

MEAN_GRADIENT_BITS = 12
"""Range: a microbatch's mean gradient per token may reach 2^12 in any element."""
MAX_PRECISION_BITS = 48
"""Precision: at most 2^-48 of a mean gradient; beyond that, the bits go to the range."""


class Accumulation(Protocol):
    """How gradients are added up; FixedPoint or FloatingPoint."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the buffer that sums are kept in."""
        ...

    @property
    def unit(self) -> float:
        """The value of a 1 in the buffer, a power of two."""
        ...

    def add(self, total: Tensor, gradient: Tensor) -> Tensor | bool:
        """Adds a gradient to its place in the sum, in place.

        Returns:
            Whether every element was in range; if not, the sum is void. On an accelerator a tensor,
            so that nobody waits for it.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Integers of 2^-unit_exponent; each contribution below 2^limit_exponent of them."""

    unit_exponent: int
    limit_exponent: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64

    @property
    def unit(self) -> float:
        return 2.0**-self.unit_exponent

    def add(self, total: Tensor, gradient: Tensor) -> Tensor | bool:
        scale, limit = 2.0**self.unit_exponent, 2.0**self.limit_exponent
        if total.device.type == "cpu":
            values = gradient.float().reshape(-1).numpy()
            return bool(kernels.add_fixed_point(total.view(-1).numpy(), values, scale, limit))
        return add_fixed_point_torch(total, gradient, scale, limit)


def add_fixed_point_torch(total: Tensor, gradient: Tensor, scale: float, limit: float) -> Tensor:
    """kernels.add_fixed_point in torch operations, for accelerators."""
    scaled = gradient.double().mul_(scale)
    in_range = (scaled.abs() < limit).all()  # false for NaN too
    total.add_(scaled.round_().to(torch.int64))
    return in_range


@dataclass(frozen=True, slots=True)
class FloatingPoint:
    """Plain float32 sums; a bad gradient shows in the norm."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def unit(self) -> float:
        return 1.0

    def add(self, total: Tensor, gradient: Tensor) -> bool:
        total.add_(gradient)
        return True


def choose_fixed_point(
    *, tokens_per_microbatch: int, num_microbatches: int, has_tied_weight: bool
) -> FixedPoint:
    """The unit for a job, from its own numbers alone.

    Let T = 2^t be at least the tokens of a microbatch and C = 2^c at least the contributions to one
    element: the step's microbatches, twice that if a weight has two uses. C contributions below
    2^(63-c) each cannot overflow. With unit 2^-u and u = p - t, the mean gradient per token is

        rounded by at most     2^-(p+1)        per microbatch, and so in their mean as well
        allowed to reach       2^(63-c-p)

    so p + c + range bits = 63. The range gets MEAN_GRADIENT_BITS, the precision what is left, at
    most MAX_PRECISION_BITS. With 8 microbatches p is 48; with 65,536 still 35: a mean gradient is
    rounded by at most 1.5e-11, far below the 1e-8 that AdamW adds to its denominator.

    Raises:
        ValueError: a count is not positive.
    """
    if tokens_per_microbatch < 1 or num_microbatches < 1:
        raise ValueError(
            f"a step of {num_microbatches} microbatches of {tokens_per_microbatch} tokens is empty"
        )
    token_bits = _ceil_log2(tokens_per_microbatch)
    contribution_bits = _ceil_log2(num_microbatches * (2 if has_tied_weight else 1))
    precision = min(MAX_PRECISION_BITS, 63 - MEAN_GRADIENT_BITS - contribution_bits)
    return FixedPoint(unit_exponent=precision - token_bits, limit_exponent=63 - contribution_bits)


def choose_accumulation(
    *,
    reproducible: bool,
    tokens_per_microbatch: int,
    num_microbatches: int,
    has_tied_weight: bool,
) -> Accumulation:
    """Fixed point in reproducible mode, else floating point."""
    if not reproducible:
        return FloatingPoint()
    return choose_fixed_point(
        tokens_per_microbatch=tokens_per_microbatch,
        num_microbatches=num_microbatches,
        has_tied_weight=has_tied_weight,
    )


class GradientSums:
    """The local gradient sums of the layers that a stage hosts, one flat buffer each.

    Attributes:
        sums: for each layer its buffer, in the layer's layout; zero until something is added.
    """

    def __init__(
        self,
        layouts: Iterable[LayerLayout],
        accumulation: Accumulation,
        device: torch.device | str = "cpu",
    ) -> None:
        self._accumulation = accumulation
        self.sums: dict[int, Tensor] = {}
        self._places: dict[tuple[int, str], Tensor] = {}
        for layout in layouts:
            total = torch.zeros(layout.num_elements, dtype=accumulation.dtype, device=device)
            self.sums[layout.layer] = total
            for name, place in layout.views(total).items():
                self._places[layout.layer, name] = place

    def take(self, leaves: Iterable[Leaf]) -> tuple[int, ...]:
        """Adds every leaf's gradient to its place in the sum of its layer, and clears it.

        Call it after each microbatch's backward pass: rounding happens here, so a gradient that
        autograd had already added to another would be rounded too late. Two uses of a tied weight
        are two leaves.

        Returns:
            The layers with an element out of range or not finite; their sums are void.
        """
        in_range: list[tuple[int, Tensor | bool]] = []
        for leaf in leaves:
            gradient = leaf.parameter.grad
            if gradient is not None:
                leaf.parameter.grad = None
                place = self._places[leaf.layer, leaf.name]
                in_range.append((leaf.layer, self._accumulation.add(place, gradient)))
        return tuple(sorted({layer for layer, flag in in_range if not flag}))

    def clear(self) -> None:
        """Back to zero, for the next step."""
        for total in self.sums.values():
            total.zero_()


def _ceil_log2(value: int) -> int:
    return (value - 1).bit_length()
