"""Sums of gradients that do not depend on who adds what to whom (reproducibility.md).

Reproducible mode rounds each microbatch's gradient, half to even, to a multiple of 2^-u and adds
integers: any order and any grouping gives the same bits. The fast mode adds floats.

Every gradient here is that of the loss summed over tokens, unscaled; the step's token count divides
once, after the sum.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from planaria_worker.engine.numerics import kernels
from planaria_worker.models.layout import LayerLayout
from planaria_worker.models.stage import Leaf

MEAN_GRADIENT_BITS = 12
"""Range: a microbatch's mean gradient per token may reach 2^12 in any element."""
MAX_PRECISION_BITS = 48
"""Precision: at most 2^-48 of a mean gradient; beyond that, the bits go to the range."""


class Add(Protocol):
    """Adds gradients to one parameter's part of a sum."""

    def __call__(self, gradient: Tensor, *, is_first: bool = False) -> Tensor | bool:
        """Add a gradient, in place.

        Args:
            gradient: of one microbatch.
            is_first: what the sum holds is of another step, and is overwritten.

        Returns:
            Whether every element was in range; if not, the sum is invalid. On an accelerator it is
            a tensor, so that nothing waits for it.
        """
        ...


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

    def into(self, total: Tensor) -> Add:
        """Return what adds to a part of a sum; built once for each part."""
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

    def into(self, total: Tensor) -> Add:
        scale, limit = 2.0**self.unit_exponent, 2.0**self.limit_exponent
        if total.device.type != "cpu":
            return partial(add_fixed_point_torch, total, scale=scale, limit=limit)
        place = total.view(-1).numpy()

        def add(gradient: Tensor, *, is_first: bool = False) -> bool:
            values = gradient.float().numpy().reshape(-1)
            return bool(kernels.add_fixed_point(place, values, scale, limit, is_first))

        return add


def add_fixed_point_torch(
    total: Tensor, gradient: Tensor, *, scale: float, limit: float, is_first: bool = False
) -> Tensor:
    """kernels.add_fixed_point in torch operations, for accelerators."""
    scaled = gradient.double().mul_(scale)
    in_range = (scaled.abs() < limit).all()  # false for NaN too
    if is_first:
        total.copy_(scaled.round_())
    else:
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

    def into(self, total: Tensor) -> Add:
        def add(gradient: Tensor, *, is_first: bool = False) -> bool:
            if is_first:
                total.copy_(gradient)
            else:
                total.add_(gradient)
            return True

        return add


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a layer's sum that is reduced at once: elements `start` up to `end`.

    A layer is cut alike in every plan, so that its complete part ends between two pieces.
    """

    layer: int
    start: int
    end: int

    @property
    def num_elements(self) -> int:
        return self.end - self.start


class GradientSums:
    """The gradient sums of the layers that a stage hosts, one flat buffer each.

    A sum is local, and receives the gradients computed here, until the complete one replaces it,
    piece by piece from its start; the replaced part receives nothing more. The complete sum of a
    layer that is a single piece stays in the buffer it arrived in, which must not change until the
    sum is copied to the layer's own or the step is over.

    A step begins without a pass over this memory: its first gradient overwrites what is there.

    Attributes:
        sums: each layer's own buffer, in the layer's layout; after `settle`, zero where nothing was
            added.
        num_complete: elements of a layer, from its start, whose complete sum is here; a layer that
            is missing has none.
    """

    def __init__(
        self,
        layouts: Iterable[LayerLayout],
        accumulation: Accumulation,
        device: torch.device | str = "cpu",
    ) -> None:
        self._accumulation = accumulation
        self.sums: dict[int, Tensor] = {}
        self.num_complete: dict[int, int] = {}
        self._in_receive_buffer: dict[int, Tensor] = {}
        self._places: dict[tuple[int, str], Tensor] = {}
        self._in_range: dict[int, Tensor | bool] = {}
        self._outdated: set[tuple[int, str]] = set()
        self._num_leaves: Counter[int] = Counter()
        self._last_pass: _LastPass | None = None
        for layout in layouts:
            total = torch.zeros(layout.num_elements, dtype=accumulation.dtype, device=device)
            self.sums[layout.layer] = total
            for name, place in layout.views(total).items():
                self._places[layout.layer, name] = place

    @property
    def dtype(self) -> torch.dtype:
        return self._accumulation.dtype

    def part(self, piece: Piece) -> Tensor:
        """Return a piece of a layer's own buffer."""
        return self.sums[piece.layer][piece.start : piece.end]

    @property
    def totals(self) -> Mapping[int, Tensor]:
        """Return the sum of each layer, whichever buffer it is in."""
        return self.sums | self._in_receive_buffer

    def put_complete(self, piece: Piece, values: Tensor) -> bool:
        """Replace the local sum of a piece by the complete one; pieces in order.

        Returns:
            Whether it is left in `values`, until `copy_to_own_buffers` or the end of the step.
        """
        self.num_complete[piece.layer] = max(piece.end, self.num_complete.get(piece.layer, 0))
        stays = piece.num_elements == self.sums[piece.layer].numel()
        if stays:
            self._in_receive_buffer[piece.layer] = values
        else:
            self.part(piece).copy_(values)
        return stays

    def copy_to_own_buffers(self, layers: Iterable[int]) -> None:
        """Copy complete sums from the buffers they arrived in to the layers' own."""
        for layer in self._in_receive_buffer.keys() & set(layers):
            self.sums[layer].copy_(self._in_receive_buffer.pop(layer))

    def settle(self, layers: Iterable[int]) -> None:
        """Zero what nothing was added to since `clear`; call before reading the layers' buffers."""
        if not self._outdated:
            return
        own = set(layers)
        for key in [key for key in self._outdated if key[0] in own]:
            self._places[key].zero_()
            self._outdated.discard(key)

    def in_range(self, layer: int) -> Tensor | bool:
        """Whether all that was added to a layer since `clear` was finite and in range."""
        return self._in_range.get(layer, True)

    def collect(
        self, leaves: Iterable[Leaf], before_each: Callable[[], None] | None = None
    ) -> None:
        """Have every backward pass add each leaf's gradient to its sum, and clear it.

        That happens as soon as autograd has it: it is still in the processor's cache, and no two
        gradients are kept. Rounding happens there, so each microbatch needs a backward pass of its
        own: what autograd had already added up would be rounded too late. Two uses of a tied weight
        are two leaves.

        Args:
            leaves: every use of every parameter.
            before_each: called before each gradient is added; may raise, to end the pass.
        """
        for leaf in leaves:
            self._num_leaves[leaf.layer] += 1
            # A closure that knew the parameter, or what does, would keep its stage alive.
            register: Any = leaf.parameter.register_post_accumulate_grad_hook  # torch has no type
            register(self._hook(leaf.layer, leaf.name, before_each))

    @contextlib.contextmanager
    def last_pass(self, when_summed: Callable[[int], None]) -> Iterator[None]:
        """Surround the backward pass after which the sums are complete.

        Args:
            when_summed: called for each layer once its sum is complete; must not raise. In the
                middle of the pass for a layer all of whose leaves have a gradient, at its end for
                the others.
        """
        last = self._last_pass = _LastPass(missing=self._num_leaves.copy(), when_summed=when_summed)
        try:
            yield
        finally:
            self._last_pass = None
        for layer in sorted(self.sums.keys() - last.summed, reverse=True):
            when_summed(layer)

    def out_of_range(self) -> tuple[int, ...]:
        """Return the layers with an element that was not finite or out of range since `clear`."""
        return tuple(sorted(layer for layer, flag in self._in_range.items() if not flag))

    def clear(self) -> None:
        """Empty the sums, for the next step."""
        self._in_range.clear()
        self.num_complete.clear()
        self._in_receive_buffer.clear()
        self._outdated.update(self._places)

    def _hook(
        self, layer: int, name: str, before_each: Callable[[], None] | None
    ) -> Callable[[Tensor], None]:
        place, accumulation = self._places[layer, name], self._accumulation
        add = accumulation.into(place)
        start = place.storage_offset() - self.sums[layer].storage_offset()
        num_complete, outdated = self.num_complete, self._outdated

        def collect(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None  # noqa: S101 - autograd calls this when it is there
            if before_each is not None:
                before_each()
            if num_complete.get(layer, 0) <= start:
                in_range = add(gradient, is_first=(layer, name) in outdated)
                outdated.discard((layer, name))
            else:
                num_done = num_complete[layer] - start  # may be more than all of it
                rest = accumulation.into(place.view(-1)[num_done:])
                in_range = rest(gradient.reshape(-1)[num_done:])
            if in_range is not True:
                self._in_range[layer] = in_range & self._in_range.get(layer, True)
            if self._last_pass is not None:
                self._last_pass.count(layer)

        return collect


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastPass:
    """Which layers' sums the last backward pass has completed."""

    missing: Counter[int]
    """Leaves of each layer whose gradient is yet to come."""
    when_summed: Callable[[int], None]
    summed: set[int] = field(default_factory=set)

    def count(self, layer: int) -> None:
        self.missing[layer] -= 1
        if not self.missing[layer]:
            self.summed.add(layer)
            self.when_summed(layer)


def _ceil_log2(value: int) -> int:
    return (value - 1).bit_length()
