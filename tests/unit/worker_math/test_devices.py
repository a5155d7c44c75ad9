"""The same arithmetic on every kind of device: exact where it should be, and the same again."""

import math
from collections.abc import Iterator

import pytest
import torch

from planaria_worker.engine.numerics.accumulate import FixedPoint, FloatingPoint, GradientSums
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.engine.numerics.norm import squared_norm
from planaria_worker.engine.numerics.optimizer import AdamWConfig, update
from planaria_worker.engine.numerics.pins import pin_numerics
from planaria_worker.models.layout import layer_layout
from planaria_worker.models.stage import Microbatch, build_stage
from planaria_worker.models.state import initial_state
from planaria_worker.models.transformer import transformer
from support.gpus import require_gpus
from support.small_reference import small_model


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Pinned as an engine pins it."""
    found = torch.device(request.param)
    require_gpus(1 if found.type == "cuda" else 0)
    before = torch.are_deterministic_algorithms_enabled()
    pin_numerics()
    yield found
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -(2.0**40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounded_sums_are_those_of_the_cpu(
    device: torch.device, dtype: torch.dtype, bad: float | None
) -> None:
    rule = FixedPoint(unit_exponent=30, limit_exponent=60)
    generator = torch.Generator().manual_seed(2)
    gradient = (torch.randn(1000, generator=generator) * 2.0**-10).to(dtype)
    gradient[:4] = torch.tensor([0.5, 1.5, 2.5, -0.5]) * 2.0**-30
    if bad is not None:
        gradient[4] = bad
    there, here = (torch.ones(1000, dtype=torch.int64, device=d) for d in (device, "cpu"))
    in_range = rule.into(there)(gradient.to(device))
    assert bool(in_range) == rule.into(here)(gradient) == (bad is None)
    assert here[:4].tolist() == [1, 3, 3, 1]
    assert torch.equal(there.cpu()[5:], here[5:])
    assert torch.equal(there.cpu(), here) or bad is not None


def test_an_update_is_that_of_the_cpu(device: torch.device) -> None:
    model = transformer(small_model("llama"))
    config = AdamWConfig(learning_rate=1e-2, num_steps=5, weight_decay=0.1)
    layout = layer_layout(model, 1)
    generator = torch.Generator().manual_seed(2)
    total = torch.randint(-(2**30), 2**30, (layout.num_elements,), generator=generator)
    there, here = (initial_state(model, 1, seed=7, device=d) for d in (device, "cpu"))
    for step in range(3):
        for state in (there, here):
            on_device = total.to(state.parameters.device)
            update(state, on_device, config=config, scale=2.0**-31, step=step)
    assert torch.equal(there.exp_avg.cpu(), here.exp_avg)
    assert torch.equal(there.exp_avg_sq.cpu(), here.exp_avg_sq)
    torch.testing.assert_close(there.parameters.cpu(), here.parameters, rtol=1e-6, atol=1e-8)
    norms = [squared_norm(layout, total.to(d), 2.0**-20) for d in (device, "cpu")]
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_a_microbatch_has_the_same_bits_again(
    device: torch.device, dtype: torch.dtype, family: str, activation_checkpointing: bool
) -> None:
    """With dropout, whatever was drawn between."""
    model = transformer(small_model(family, dropout=0.1))
    states = {
        layer: initial_state(model, layer, seed=7, device=device, compute_dtype=dtype)
        for layer in range(model.num_layers)
    }
    stage = build_stage(
        model,
        0,
        model.num_layers,
        states,
        seed=7,
        activation_checkpointing=activation_checkpointing,
    )
    sums = GradientSums([state.layout for state in states.values()], FloatingPoint(), device)
    sums.collect(stage.leaves)
    tokens = torch.randint(256, (2, 25), generator=torch.Generator().manual_seed(3)).to(device)
    found = []
    for _ in range(2):
        logits = stage(tokens[:, :-1], Microbatch(step=1, index=2))
        outcome = summed_cross_entropy(logits, tokens[:, 1:])
        torch.autograd.backward(outcome)
        found.append((outcome.item(), {x: total.clone() for x, total in sums.sums.items()}))
        sums.clear()
        torch.randn(5, device=device)
    (loss, gradients), (loss_again, gradients_again) = found
    assert loss == loss_again
    assert all(torch.equal(gradients[layer], gradients_again[layer]) for layer in gradients)
