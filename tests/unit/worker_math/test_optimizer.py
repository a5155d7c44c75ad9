"""Updates: the schedule, clipping and AdamW."""

from typing import Any

import pytest
import torch

from planaria_worker.engine.numerics import optimizer
from planaria_worker.engine.numerics.optimizer import (
    AdamWConfig,
    gradient_scale,
    learning_rate,
    update,
)
from planaria_worker.models.layout import LayerLayout, TensorLayout
from planaria_worker.models.state import LayerState, empty_state


def test_warm_up_then_cosine_to_zero() -> None:
    config = AdamWConfig(learning_rate=2.0, num_steps=14, warmup_steps=4)
    rates = [learning_rate(config, step) for step in range(14)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[9] == pytest.approx(1.0)
    assert sorted(rates[4:], reverse=True) == rates[4:]
    assert 0 < rates[-1] < 0.1


def test_a_constant_rate_stays() -> None:
    config = AdamWConfig(learning_rate=2.0, num_steps=9, warmup_steps=2, schedule="constant")
    assert [learning_rate(config, step) for step in range(4)] == [1.0, 2.0, 2.0, 2.0]


def test_clipping_scales_long_gradients_only() -> None:
    config = AdamWConfig(learning_rate=1.0, num_steps=1, clip_norm=0.5)
    assert gradient_scale(config, unit=0.25, num_tokens=2, norm=0.4) == 0.125
    assert gradient_scale(config, unit=0.25, num_tokens=2, norm=5.0) == pytest.approx(0.0125)


def _random_state(config: AdamWConfig) -> tuple[LayerState, torch.Tensor]:
    layout = LayerLayout(
        layer=0,
        tensors=(
            TensorLayout(name="matrix", shape=(7, 9), offset=0),
            TensorLayout(name="vector", shape=(13,), offset=64),
        ),
        num_elements=96,
    )
    generator = torch.Generator().manual_seed(1)
    state = empty_state(layout)
    for view in layout.views(state.parameters).values():
        view.normal_(generator=generator)
    total = torch.randint(-(2**30), 2**30, (96,), generator=generator)
    return state, total


def test_adamw_agrees_with_torch() -> None:
    """To rounding: torch multiplies in another order."""
    config = AdamWConfig(
        learning_rate=1e-2, num_steps=5, weight_decay=0.1, schedule="constant", beta2=0.99
    )
    state, total = _random_state(config)
    matrix = state.layout["matrix"].view(state.parameters).clone().requires_grad_()
    vector = state.layout["vector"].view(state.parameters).clone().requires_grad_()
    groups: list[dict[str, Any]] = [
        {"params": [matrix]},
        {"params": [vector], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(5):
        sums = state.layout.views(total * (step + 1))
        matrix.grad = (sums["matrix"].double() * 2.0**-31).float()
        vector.grad = (sums["vector"].double() * 2.0**-31).float()
        theirs.step()
        update(state, total * (step + 1), config=config, scale=2.0**-31, step=step)
    for name, expected in (("matrix", matrix), ("vector", vector)):
        ours = state.layout[name].view(state.parameters)
        torch.testing.assert_close(ours, expected.detach(), rtol=1e-5, atol=1e-6)


def test_the_gaps_between_tensors_stay_zero() -> None:
    config = AdamWConfig(learning_rate=1e-2, num_steps=5, weight_decay=0.1)
    state, total = _random_state(config)
    update(state, total, config=config, scale=2.0**-31, step=0)
    for slot in ("parameters", "exp_avg", "exp_avg_sq"):
        assert not state.buffer(slot)[63:64].any()
        assert not state.buffer(slot)[77:].any()


def test_torch_operations_and_the_fused_kernel_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA an update is torch operations: bitwise, but for MKL's square root on the CPU."""
    config = AdamWConfig(learning_rate=1e-2, num_steps=5, weight_decay=0.1)
    fused, total = _random_state(config)
    plain, _ = _random_state(config)
    for step in range(3):
        update(fused, total, config=config, scale=2.0**-31, step=step)
    monkeypatch.setattr(optimizer, "_update_cpu", optimizer._update_torch)
    for step in range(3):
        update(plain, total, config=config, scale=2.0**-31, step=step)
    assert torch.equal(fused.exp_avg, plain.exp_avg)
    assert torch.equal(fused.exp_avg_sq, plain.exp_avg_sq)
    torch.testing.assert_close(fused.parameters, plain.parameters, rtol=1e-6, atol=1e-8)
