"""The worker's modules, composed in one process, against the plain loop of benchmarks/oracle."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.oracle.reference import ReferenceJob, ReferenceResult, train
from planaria.job import ImportedSpec
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.data.order import SampleOrder
from planaria_worker.engine.numerics.accumulate import GradientSums, choose_accumulation
from planaria_worker.engine.numerics.digest import layer_digest
from planaria_worker.engine.numerics.loss import loss_units, mean_loss, summed_cross_entropy
from planaria_worker.engine.numerics.norm import global_norm, squared_norm
from planaria_worker.engine.numerics.optimizer import gradient_scale, learning_rate, update
from planaria_worker.models.imported import import_model
from planaria_worker.models.layer import Model
from planaria_worker.models.stage import Microbatch, Stage, build_stage
from planaria_worker.models.state import LayerState, initial_state
from planaria_worker.models.transformer import transformer
from support.digests import final_digest
from support.small_reference import NUM_LAYERS, small_job, small_model

WHOLE = [(0, NUM_LAYERS)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ReferenceJob:
    return small_job(tmp_path_factory.mktemp("corpus"), small_model("llama"))


def _run_worker(
    job: ReferenceJob, cut: Sequence[tuple[int, int]], *, checkpointing: bool = False
) -> ReferenceResult:
    """One pipeline of the stages (first_layer, num_layers), one microbatch after the other."""
    model = _built(job.model)
    states = {
        layer: initial_state(model, layer, seed=job.seed, compute_dtype=job.dtype)
        for layer in range(model.num_layers)
    }
    stages = [
        build_stage(
            model, first, count, states, seed=job.seed, activation_checkpointing=checkpointing
        )
        for first, count in cut
    ]
    accumulation = choose_accumulation(
        reproducible=True,
        tokens_per_microbatch=job.microbatch_size * job.dataset.sequence_length,
        num_microbatches=job.num_microbatches,
        has_tied_weight=model.tied is not None,
    )
    sums = GradientSums([state.layout for state in states.values()], accumulation)
    for stage in stages:
        sums.collect(stage.leaves)
    order = SampleOrder(
        num_sequences=job.dataset.num_sequences,
        num_microbatches=job.num_microbatches,
        microbatch_size=job.microbatch_size,
        seed=job.seed,
    )
    losses, norms = [], []
    for step in range(job.num_steps):
        units = 0
        for index in reversed(range(job.num_microbatches)):  # any order gives the same sum
            rows = torch.from_numpy(job.dataset.rows(order.microbatch(step, index)))
            loss = _forward_backward(stages, rows, Microbatch(step=step, index=index))
            units += loss_units(loss) or 0
        assert sums.out_of_range() == ()
        losses.append(mean_loss(units, _num_tokens(job)))
        norms.append(_update(job, states, sums.sums, unit=accumulation.unit, step=step))
        sums.clear()
    parameters = {layer: state.layout.views(state.parameters) for layer, state in states.items()}
    return ReferenceResult(
        digest=final_digest(layer_digest(parameters[layer]) for layer in states),
        losses=losses,
        norms=norms,
        learning_rates=[learning_rate(job.optimizer, step) for step in range(job.num_steps)],
        parameters={name: value for views in parameters.values() for name, value in views.items()},
    )


def _num_tokens(job: ReferenceJob) -> int:
    """Those of one step."""
    return job.num_microbatches * job.microbatch_size * job.dataset.sequence_length


def _update(
    job: ReferenceJob,
    states: Mapping[int, LayerState],
    sums: Mapping[int, torch.Tensor],
    *,
    unit: float,
    step: int,
) -> float:
    """Every layer takes the step; returns the gradient's norm."""
    num_tokens = _num_tokens(job)
    squared = {
        layer: squared_norm(states[layer].layout, total, unit) for layer, total in sums.items()
    }
    norm = global_norm(squared, num_tokens)
    scale = gradient_scale(job.optimizer, unit=unit, num_tokens=num_tokens, norm=norm)
    for layer, state in states.items():
        update(state, sums[layer], config=job.optimizer, scale=scale, step=step)
    return norm


def _built(model: ModelConfig | ImportedSpec) -> Model:
    if isinstance(model, ModelConfig):
        return transformer(model)
    return import_model(model.import_path, model.arguments)


def _forward_backward(stages: list[Stage], rows: torch.Tensor, microbatch: Microbatch) -> float:
    """Each stage has a graph of its own, as if its neighbours were elsewhere."""
    inputs, outputs = [], []
    hidden = rows[:, :-1]
    for stage in stages:
        received = hidden.detach()
        if not stage.is_first:
            received.requires_grad_()
        inputs.append(received)
        hidden = stage(received, microbatch)
        outputs.append(hidden)
    loss = summed_cross_entropy(hidden, rows[:, 1:])
    torch.autograd.backward(loss)
    for index in reversed(range(len(stages) - 1)):
        outputs[index].backward(inputs[index + 1].grad)
    return loss.item()


def _assert_equal(result: ReferenceResult, expected: ReferenceResult) -> None:
    assert result.losses == expected.losses
    assert result.norms == expected.norms
    assert result.learning_rates == expected.learning_rates
    for name, value in expected.parameters.items():
        assert torch.equal(result.parameters[name], value), name
    assert result.digest == expected.digest


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_the_worker_trains_what_a_plain_loop_trains(
    job: ReferenceJob, family: str, tied: bool
) -> None:
    job = replace(job, model=small_model(family, tie_word_embeddings=tied))
    expected = train(job)
    assert expected.losses[-1] < expected.losses[0]
    _assert_equal(_run_worker(job, WHOLE), expected)
    _assert_equal(_run_worker(job, [(0, 2), (2, 2), (4, 1)]), expected)


@pytest.mark.parametrize(
    "cut",
    [
        [(0, 1), (1, 4)],
        [(0, 4), (4, 1)],
        [(0, 3), (3, 2)],
        [(layer, 1) for layer in range(NUM_LAYERS)],
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_the_cut_changes_nothing(job: ReferenceJob, cut: list[tuple[int, int]], tied: bool) -> None:
    job = replace(job, model=small_model("llama", tie_word_embeddings=tied))
    _assert_equal(_run_worker(job, cut), _run_worker(job, WHOLE))


@pytest.mark.parametrize("cut", [[(0, 7)], [(0, 3), (3, 4)], [(0, 1), (1, 5), (6, 1)]])
def test_a_models_own_tied_weight_is_one_parameter_with_two_uses(
    job: ReferenceJob, cut: list[tuple[int, int]]
) -> None:
    spec = ImportedSpec(import_path="support.own_model:tied_layers", arguments={"width": 24})
    job = replace(job, model=spec)
    assert job.tied == ("0.tokens.weight", "6.weight")
    expected = train(job)
    assert "6.weight" not in expected.parameters
    assert expected.losses[-1] < expected.losses[0]
    _assert_equal(_run_worker(job, cut), expected)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_dropout_depends_on_the_microbatch_and_not_on_the_plan(
    job: ReferenceJob, family: str
) -> None:
    job = replace(job, model=small_model(family, dropout=0.2))
    expected = train(job)
    for cut in (WHOLE, [(0, 2), (2, 3)]):
        _assert_equal(_run_worker(job, cut), expected)
    assert expected.digest != train(replace(job, model=small_model(family))).digest


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_bfloat16_with_float32_master_weights(job: ReferenceJob, family: str) -> None:
    model = small_model(family, tie_word_embeddings=True)
    expected = train(replace(job, model=model, dtype=torch.bfloat16))
    assert expected.losses[-1] < expected.losses[0]
    for cut in (WHOLE, [(0, 2), (2, 2), (4, 1)]):
        _assert_equal(_run_worker(replace(job, model=model, dtype=torch.bfloat16), cut), expected)
    assert expected.digest != train(replace(job, model=model)).digest


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_activation_checkpointing_changes_no_bit(job: ReferenceJob, dropout: float) -> None:
    job = replace(job, model=small_model("llama", dropout=dropout))
    checkpointed = _run_worker(job, [(0, 2), (2, 3)], checkpointing=True)
    _assert_equal(checkpointed, _run_worker(job, WHOLE))


def test_seed_and_data_order_matter(job: ReferenceJob, tmp_path: Path) -> None:
    assert _run_worker(job, WHOLE).digest != _run_worker(replace(job, seed=8), WHOLE).digest
