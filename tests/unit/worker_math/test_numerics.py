"""Sums, norms and digests: exact, in any order, and loud when out of range."""

import hashlib
import math
import struct
from functools import partial
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planaria_worker.engine.numerics.accumulate import (
    FixedPoint,
    FloatingPoint,
    GradientSums,
    Piece,
    add_fixed_point_torch,
    choose_accumulation,
    choose_fixed_point,
)
from planaria_worker.engine.numerics.digest import layer_digest
from planaria_worker.engine.numerics.loss import loss_units, mean_loss
from planaria_worker.engine.numerics.norm import global_norm, squared_norm
from planaria_worker.models.layout import ALIGNMENT, LayerLayout, TensorLayout
from planaria_worker.models.stage import build_stage
from planaria_worker.models.transformer import transformer
from support.small_reference import initial_states, small_model


def _layout(*sizes: int) -> LayerLayout:
    tensors, offset = [], 0
    for index, size in enumerate(sizes):
        tensors.append(TensorLayout(name=f"t{index}", shape=(size,), offset=offset))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return LayerLayout(layer=0, tensors=tuple(tensors), num_elements=offset)


@given(st.randoms(use_true_random=False), st.integers(1, 100))
def test_fixed_point_sums_do_not_depend_on_the_order(random: Random, count: int) -> None:
    generator = np.random.default_rng(count)
    exponents = generator.integers(-30, 8, (count, 33))
    gradients = [
        torch.from_numpy(np.ldexp(row, exponent).astype(np.float32))
        for row, exponent in zip(generator.standard_normal((count, 33)), exponents, strict=True)
    ]
    rule = choose_fixed_point(
        tokens_per_microbatch=64, num_microbatches=count, has_tied_weight=False
    )
    one, other = torch.zeros(33, dtype=torch.int64), torch.zeros(33, dtype=torch.int64)
    for gradient in gradients:
        assert rule.into(one)(gradient)
    random.shuffle(gradients)
    for gradient in gradients:
        rule.into(other)(gradient)
    assert torch.equal(one, other)


def test_rounding_is_half_to_even() -> None:
    rule = FixedPoint(unit_exponent=1, limit_exponent=60)
    total = torch.zeros(5, dtype=torch.int64)
    rule.into(total)(torch.tensor([0.25, 0.75, 1.25, -0.25, -0.75]))
    assert total.tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**20, -(2.0**20)])
def test_a_gradient_out_of_range_is_reported(bad: float) -> None:
    rule = FixedPoint(unit_exponent=40, limit_exponent=60)
    gradient = torch.zeros(100)
    gradient[57] = bad
    assert not rule.into(torch.zeros(100, dtype=torch.int64))(gradient)
    gradient[57] = 2.0**20 - 1
    assert rule.into(torch.zeros(100, dtype=torch.int64))(gradient)


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("bad", [None, math.nan, 2.0**40])
def test_torch_operations_add_as_the_fused_kernel_does(bad: float | None, is_first: bool) -> None:
    rule = FixedPoint(unit_exponent=30, limit_exponent=60)
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(2)) * 2.0**-10
    if bad is not None:
        gradient[3] = bad
    fused, plain = torch.ones(1000, dtype=torch.int64), torch.ones(1000, dtype=torch.int64)
    in_range = rule.into(fused)(gradient, is_first=is_first)
    assert in_range == (bad is None)
    assert (
        bool(
            add_fixed_point_torch(plain, gradient, scale=2.0**30, limit=2.0**60, is_first=is_first)
        )
        == in_range
    )
    assert torch.equal(fused[4:], plain[4:])
    assert torch.equal(fused, plain) or bad is not None


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 17), st.booleans())
def test_the_chosen_unit_cannot_overflow_and_is_fine_enough(
    tokens: int, num_microbatches: int, tied: bool
) -> None:
    rule = choose_fixed_point(
        tokens_per_microbatch=tokens, num_microbatches=num_microbatches, has_tied_weight=tied
    )
    contributions = num_microbatches * (2 if tied else 1)
    assert contributions * (2**rule.limit_exponent - 1) <= 2**63 - 1
    largest_mean = 2.0 ** (rule.limit_exponent - rule.unit_exponent) / tokens
    assert largest_mean >= 2**12
    assert rule.unit / tokens <= 2.0**-32


def test_the_largest_allowed_contributions_fill_the_sum_without_wrapping() -> None:
    rule = choose_fixed_point(tokens_per_microbatch=1, num_microbatches=4, has_tied_weight=False)
    total = torch.zeros(1, dtype=torch.int64)
    limit = np.float32(2.0 ** (rule.limit_exponent - rule.unit_exponent))
    largest = np.nextafter(limit, np.float32(0))
    for _ in range(4):
        assert rule.into(total)(torch.tensor([float(largest)]))
    assert 0 < total.item() < 2**63 - 1
    assert total.item() * rule.unit == 4 * float(largest)


@pytest.mark.parametrize(("tokens", "microbatches"), [(0, 1), (1, 0)])
def test_an_empty_step_is_refused(tokens: int, microbatches: int) -> None:
    with pytest.raises(ValueError, match="is empty"):
        choose_fixed_point(
            tokens_per_microbatch=tokens, num_microbatches=microbatches, has_tied_weight=False
        )


def _gradients_of_one_microbatch(family: str) -> tuple[GradientSums, GradientSums]:
    """Fixed-point and floating-point sums of the same gradients."""
    config = small_model(family, tie_word_embeddings=True)
    states = initial_states(config)
    layouts = [state.layout for state in states.values()]
    fixed = GradientSums(
        layouts,
        choose_fixed_point(tokens_per_microbatch=48, num_microbatches=3, has_tied_weight=True),
    )
    floating = GradientSums(layouts, FloatingPoint())
    generator = torch.Generator().manual_seed(3)
    for sums in (fixed, floating):
        stage = build_stage(transformer(config), 0, 5, states)
        sums.collect(stage.leaves)
        generator.manual_seed(3)
        for _ in range(3):
            tokens = torch.randint(0, 256, (2, 24), generator=generator)
            torch.autograd.backward(stage(tokens).square().sum())
            assert all(leaf.parameter.grad is None for leaf in stage.leaves)
        assert sums.out_of_range() == ()
    return fixed, floating


def test_default_mode_differs_by_rounding_alone() -> None:
    """At most n·eps·Σ|g_i| apart, n = 6 additions."""
    fixed, floating = _gradients_of_one_microbatch("gpt2")
    unit = choose_fixed_point(
        tokens_per_microbatch=48, num_microbatches=3, has_tied_weight=True
    ).unit
    for layer, total in floating.sums.items():
        exact = fixed.sums[layer].double() * unit
        bound = 6 * torch.finfo(torch.float32).eps * total.abs().max()
        assert (total - exact).abs().max() <= bound
        assert total.abs().max() > 0


def test_the_layer_out_of_range_is_named() -> None:
    config = small_model("llama")
    states = initial_states(config)
    stage = build_stage(transformer(config), 0, 5, states)
    sums = GradientSums(
        [state.layout for state in states.values()],
        FixedPoint(unit_exponent=40, limit_exponent=60),
    )
    sums.collect(stage.leaves)
    weight = stage.layers[2]["model.layers.1.mlp.up_proj.weight"]
    spoil = lambda gradient: gradient.index_fill(0, torch.tensor(3), math.nan)  # noqa: E731
    weight.register_hook(spoil)  # type: ignore[no-untyped-call]
    torch.autograd.backward(stage(torch.zeros(1, 24, dtype=torch.int64)).sum())
    assert sums.out_of_range() == (2,)
    sums.clear()
    assert sums.out_of_range() == ()


@pytest.mark.parametrize("accumulation", [FloatingPoint(), FixedPoint(40, 60)])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_complete_sum_accepts_nothing_more(
    accumulation: FloatingPoint | FixedPoint, share: float
) -> None:
    """What is computed behind an attempt is added to what is local still, wherever that begins."""
    config = small_model("llama")
    states = initial_states(config)
    layouts = [state.layout for state in states.values()]
    tokens = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(3))
    totals = []
    for has_whole in (False, True):
        stage = build_stage(transformer(config), 0, 5, states)
        sums = GradientSums(layouts, accumulation)
        sums.collect(stage.leaves)
        for layout in layouts if has_whole else ():
            whole = Piece(layer=layout.layer, start=0, end=int(share * layout.num_elements))
            sums.put_complete(whole, torch.full((whole.num_elements,), 7, dtype=sums.dtype))
        torch.autograd.backward(stage(tokens).square().sum())
        totals.append(sums.totals)
        sums.copy_to_own_buffers(sums.sums)
        assert all(torch.equal(sums.sums[x], total) for x, total in totals[-1].items())
    for layout in layouts:
        num_complete = int(share * layout.num_elements)
        local, total = totals[0][layout.layer], totals[1][layout.layer]
        assert (total[:num_complete] == 7).all()
        assert torch.equal(total[num_complete:], local[num_complete:])


def test_a_gradient_nothing_was_added_to_is_zero() -> None:
    """Guard: `settle`."""
    sums = GradientSums([_layout(5)], FloatingPoint())
    whole = _layout(5).num_elements
    sums.put_complete(Piece(layer=0, start=0, end=whole), torch.ones(whole))
    sums.copy_to_own_buffers([0])
    sums.sums[0][5:].zero_()  # the gap
    sums.clear()
    sums.settle([0])
    assert not sums.sums[0].any()
    assert not sums.num_complete


@pytest.mark.parametrize("accumulation", [FloatingPoint(), FixedPoint(40, 60)])
@pytest.mark.parametrize("tied", [False, True])
def test_a_step_begins_with_nothing_of_the_one_before(
    accumulation: FloatingPoint | FixedPoint, tied: bool
) -> None:
    """Its sums are those of new buffers, zero from the start.

    Guard: `_outdated`; without its discard, only the last gradient would count.
    """
    config = small_model("llama", tie_word_embeddings=tied)
    states = initial_states(config)
    layouts = [state.layout for state in states.values()]
    generator = torch.Generator().manual_seed(3)
    batches = torch.randint(0, 256, (4, 2, 24), generator=generator)
    totals = []
    for steps in ([batches[:2], batches[2:]], [batches[2:]]):
        stage = build_stage(transformer(config), 0, 5, states)
        sums = GradientSums(layouts, accumulation)
        sums.collect(stage.leaves)
        for number, step in enumerate(steps):
            if number:
                sums.clear()
            for tokens in step:
                torch.autograd.backward(stage(tokens).square().sum())
        totals.append(sums.sums)
    for layout in layouts:
        assert torch.equal(totals[0][layout.layer], totals[1][layout.layer])


@pytest.mark.parametrize("sizes", [(1,), (15, 16), (17, 40, 1000)])
def test_the_squared_norm_follows_its_definition(sizes: tuple[int, ...]) -> None:
    """Lane j adds elements j, j+16, … one after the other; then lanes, then tensors in order."""
    layout = _layout(*sizes)
    total = torch.zeros(layout.num_elements, dtype=torch.int64)
    generator = torch.Generator().manual_seed(5)
    expected = 0.0
    for tensor in layout.tensors:
        place = tensor.view(total)
        place.copy_(torch.randint(-(2**40), 2**40, place.shape, generator=generator))
        lanes = [0.0] * 16
        for index, value in enumerate(place.tolist()):
            lanes[index % 16] += float(value) ** 2
        sum_of_lanes = 0.0
        for lane in lanes:
            sum_of_lanes += lane
        expected += sum_of_lanes
    assert squared_norm(layout, total, 2.0**-20) == expected * 2.0**-40


def test_the_global_norm_adds_layers_in_order_whatever_order_they_came_in() -> None:
    squares = {0: 1.0, 1: 2.0**-53, 2: 2.0**-53}  # the small ones only count when added first
    shuffled = {layer: squares[layer] for layer in (2, 1, 0)}
    assert sum(squares.values()) != sum(shuffled.values())
    assert global_norm(squares, 1) == global_norm(shuffled, 1) == 1.0
    assert global_norm({0: 9.0, 1: 16.0}, 5) == 1.0


def test_losses_add_up_in_any_order_and_bad_ones_show() -> None:
    units = [loss_units(value) for value in (5.5, 1e-6, 3.25)]
    assert mean_loss(sum(unit or 0 for unit in units), 2) == pytest.approx(4.3750005)
    assert loss_units(math.nan) is None
    assert loss_units(math.inf) is None


def test_the_digest_is_what_the_contract_says() -> None:
    tensors = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor([3.0])}
    digest = hashlib.sha256(
        b"a"
        + b"float32"
        + struct.pack("<q", 1)
        + struct.pack("<f", 3.0)
        + b"b"
        + b"float32"
        + struct.pack("<qq", 1, 2)
        + struct.pack("<ff", 1.0, 2.0)
    ).digest()
    assert layer_digest(tensors) == digest


def test_the_mode_chooses_the_accumulation() -> None:
    choose = partial(
        choose_accumulation, tokens_per_microbatch=8, num_microbatches=2, has_tied_weight=False
    )
    assert isinstance(choose(reproducible=True), FixedPoint)
    assert isinstance(choose(reproducible=False), FloatingPoint)
