"""A plain training loop in one process: what every distributed run must equal bit for bit.

It shares with the worker only the initial values, the order of samples and which are held out. The
model is the whole one from transformers; gradients come from autograd one microbatch at a time, are
rounded with plain torch operations, summed as integers, and go through a norm, an AdamW and a
digest written here from their definitions (reproducibility.md, ARCHITECTURE.md `final_digest`).
"""

import copy
import hashlib
import importlib
import itertools
import math
import struct
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from planaria.job import ImportedSpec
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.data.dataset import Dataset
from planaria_worker.engine.data.held_out import Split
from planaria_worker.engine.data.order import SampleOrder
from planaria_worker.engine.numerics.optimizer import AdamWConfig
from planaria_worker.engine.numerics.rng import derive_seed
from planaria_worker.models.imported import import_model
from planaria_worker.models.layer import Model
from planaria_worker.models.state import initial_state
from planaria_worker.models.transformer import huggingface_config, transformer


@dataclass(frozen=True, kw_only=True)
class ReferenceEvaluation:
    """What is evaluated, and how often."""

    every_steps: int
    dataset: Dataset
    sequences: list[int]


@dataclass(frozen=True, kw_only=True)
class ReferenceJob:
    """A whole job."""

    model: ModelConfig | ImportedSpec
    dataset: Dataset
    num_steps: int
    num_microbatches: int
    microbatch_size: int
    seed: int
    optimizer: AdamWConfig
    dtype: torch.dtype = torch.float32
    """What is computed with; the parameters that are updated stay float32."""
    held_out: Split | None = None
    """The part of the dataset that is not trained on."""
    evaluation: ReferenceEvaluation | None = None

    @cached_property
    def tied(self) -> tuple[str, str] | None:
        """The names of a parameter that two layers share, in the first of them and in the last."""
        if isinstance(self.model, ImportedSpec):
            return _shared_names(_listed(self.model))
        embedding = "transformer.wte" if self.model.family == "gpt2" else "model.embed_tokens"
        return (f"{embedding}.weight", "lm_head.weight") if self.model.tie_word_embeddings else None


@dataclass(frozen=True, kw_only=True)
class ReferenceResult:
    """What a job ends with."""

    digest: str
    losses: list[float]
    """Nats per token, for each step."""
    norms: list[float]
    """Of the gradient of the mean loss, before clipping, for each step."""
    learning_rates: list[float]
    parameters: dict[str, Tensor]
    evaluation_losses: dict[int, float] = field(default_factory=dict)
    """Nats per held-out token, by number of steps in the parameters."""


@dataclass(kw_only=True)
class _Current:
    """Which microbatch is being computed: what dropout depends on."""

    step: int = 0
    index: int = 0
    is_skipped: bool = False
    """Whether the step had a gradient or loss that was not finite or too large."""


@dataclass(kw_only=True)
class _Parameter:
    """One distinct parameter: its uses in the graph, its integer sum and its moments."""

    name: str
    layer: int
    value: Tensor
    uses: list[nn.Parameter]
    total: Tensor = field(init=False)
    exp_avg: Tensor = field(init=False)
    exp_avg_sq: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.total = torch.zeros_like(self.value, dtype=torch.int64)
        self.exp_avg = torch.zeros_like(self.value)
        self.exp_avg_sq = torch.zeros_like(self.value)


def train(job: ReferenceJob) -> ReferenceResult:
    """Runs the job from its initial values to its end."""
    current = _Current()
    module, parameters, num_layers = _build(job, current)
    losses, norms = [], []
    evaluations: dict[int, float] = {}
    num_tokens = job.num_microbatches * job.microbatch_size * job.dataset.sequence_length
    for step in range(job.num_steps):
        _evaluate(job, module, step, evaluations)
        total_loss = 0
        current.is_skipped = False
        for index in range(job.num_microbatches):
            current.step, current.index = step, index
            total_loss += _microbatch(job, module, parameters, current)
        if current.is_skipped:
            _skip(parameters)
            losses.append(0.0)
            norms.append(0.0)
            continue
        norm = _norm(job, parameters) / num_tokens
        for parameter in parameters:
            _update(job, parameter, step, num_tokens, norm)
        losses.append(total_loss / 2**24 / num_tokens)
        norms.append(norm)
    _evaluate(job, module, job.num_steps, evaluations)
    return ReferenceResult(
        digest=_digest(parameters, num_layers),
        losses=losses,
        norms=norms,
        learning_rates=[_learning_rate(job.optimizer, step) for step in range(job.num_steps)],
        parameters={parameter.name: parameter.value.clone() for parameter in parameters},
        evaluation_losses=evaluations,
    )


def _unit_exponent(job: ReferenceJob) -> int:
    """u: 63 bits less those for the sum, 12 for the range and those for the tokens."""
    token_bits = math.ceil(math.log2(job.microbatch_size * job.dataset.sequence_length))
    return min(48, 51 - _sum_bits(job)) - token_bits


def _sum_bits(job: ReferenceJob) -> int:
    uses = 1 if job.tied is None else 2
    return math.ceil(math.log2(job.num_microbatches * uses))


def _build(job: ReferenceJob, current: _Current) -> tuple[nn.Module, list[_Parameter], int]:
    """The whole model, with its parameters and its number of layers.

    Where two modules share a parameter, each gets a leaf of its own.
    """
    if isinstance(job.model, ModelConfig):
        module, layers = _transformer(job.model)
        model: Model = transformer(job.model)
    else:
        module, layers = _imported(job.model, job.dtype)
        model = import_model(job.model.import_path, job.model.arguments)
    module.train()
    names = dict(module.named_parameters())
    parameters = []
    for layer in range(model.num_layers):
        state = initial_state(model, layer, seed=job.seed)
        for name, value in state.layout.views(state.parameters).items():
            uses = [names.pop(name)]
            if job.tied is not None and name == job.tied[0]:
                uses.append(names.pop(job.tied[1]))
            for use in uses:
                use.data = value.to(job.dtype, copy=True)
            parameters.append(_Parameter(name=name, layer=layer, value=value.clone(), uses=uses))
    assert not names, f"parameters without a layer: {sorted(names)}"
    _seed_each_layer(job, layers, current)
    return module, parameters, model.num_layers


def _transformer(config: ModelConfig) -> tuple[nn.Module, list[nn.Module]]:
    """The model from transformers, and the modules that begin its layers."""
    huggingface = huggingface_config(config)
    huggingface.tie_word_embeddings = False
    module = AutoModelForCausalLM.from_config(huggingface)
    blocks = "transformer.h" if config.family == "gpt2" else "model.layers"
    return module, [module, *module.get_submodule(blocks).children()]


class _Chain(nn.Sequential):
    """The user's layers one after the other, with the logits where transformers has them."""

    def forward(self, tokens: Tensor, **_: object) -> SimpleNamespace:  # type: ignore[override]
        hidden = tokens
        for layer in self:
            hidden = layer(hidden)
        return SimpleNamespace(logits=hidden)


def _imported(spec: ImportedSpec, dtype: torch.dtype) -> tuple[nn.Module, list[nn.Module]]:
    # A copy of each layer by itself shares nothing with the others.
    layers = [copy.deepcopy(layer).to(dtype) for layer in _listed(spec)]
    return _Chain(*layers), layers


def _listed(spec: ImportedSpec) -> list[nn.Module]:
    module_name, _, function = spec.import_path.partition(":")
    layers: list[nn.Module] = getattr(importlib.import_module(module_name), function)(
        **spec.arguments
    )
    return layers


def _shared_names(layers: list[nn.Module]) -> tuple[str, str] | None:
    every = dict(nn.Sequential(*layers).named_parameters(remove_duplicate=False))
    pairs = itertools.combinations(every.items(), 2)
    return next(((a, b) for (a, first), (b, second) in pairs if first is second), None)


def _seed_each_layer(job: ReferenceJob, layers: list[nn.Module], current: _Current) -> None:
    """Randomness in a layer is a function of (seed, step, microbatch, layer)."""

    def seed(layer: int) -> None:
        torch.manual_seed(derive_seed(job.seed, "dropout", current.step, current.index, layer))

    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, index=index: seed(index))


def _microbatch(
    job: ReferenceJob, module: nn.Module, parameters: list[_Parameter], current: _Current
) -> int:
    """Adds one microbatch's rounded gradients; returns its loss in units of 2^-24."""
    held_out = job.held_out
    order = SampleOrder(
        num_sequences=job.dataset.num_sequences if held_out is None else held_out.num_training,
        num_microbatches=job.num_microbatches,
        microbatch_size=job.microbatch_size,
        seed=job.seed,
        sequence_at=int if held_out is None else held_out.training,
    )
    rows = torch.from_numpy(job.dataset.rows(order.microbatch(current.step, current.index)))
    logits = module(rows[:, :-1], use_cache=False).logits
    loss = nn.functional.cross_entropy(
        logits.float().reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1), reduction="sum"
    )
    torch.autograd.backward(loss)
    scale, limit = 2.0 ** _unit_exponent(job), 2.0 ** (63 - _sum_bits(job))
    is_good = math.isfinite(loss.item())
    for parameter in parameters:
        for use in parameter.uses:
            assert use.grad is not None
            scaled = use.grad.double() * scale
            is_good &= bool((scaled.abs() < limit).all())
            if is_good:
                parameter.total += torch.round(scaled).long()
            use.grad = None
    current.is_skipped |= not is_good
    return round(loss.item() * 2**24) if is_good else 0


def _skip(parameters: list[_Parameter]) -> None:
    """The step counts like any other, and changes nothing."""
    for parameter in parameters:
        parameter.total.zero_()


def _evaluate(
    job: ReferenceJob, module: nn.Module, num_steps: int, losses: dict[int, float]
) -> None:
    """Enters the loss on the held-out sequences, at every multiple and at the end."""
    evaluation = job.evaluation
    if evaluation is None or (num_steps % evaluation.every_steps and num_steps != job.num_steps):
        return
    module.eval()
    total, size = 0, job.microbatch_size
    for first in range(0, len(evaluation.sequences), size):
        rows = torch.from_numpy(evaluation.dataset.rows(evaluation.sequences[first : first + size]))
        with torch.no_grad():
            logits = module(rows[:, :-1], use_cache=False).logits.float()
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum"
            )
        total += round(loss.item() * 2**24)
    num_tokens = len(evaluation.sequences) * evaluation.dataset.sequence_length
    losses[num_steps] = total / 2**24 / num_tokens
    module.train()


def _norm(job: ReferenceJob, parameters: list[_Parameter]) -> float:
    """Sixteen interleaved sums per tensor, tensors in name order, layers in order."""
    unit = 2.0 ** -_unit_exponent(job)
    by_layer: dict[int, float] = {}
    for parameter in sorted(parameters, key=lambda parameter: parameter.name):
        squares = parameter.total.double().flatten().square()
        padded = nn.functional.pad(squares, (0, -squares.numel() % 16)).view(-1, 16)
        lanes = padded.cumsum(0)[-1]  # cumsum adds one after the other
        by_layer[parameter.layer] = by_layer.get(parameter.layer, 0.0) + sum(lanes.tolist())
    return math.sqrt(sum(by_layer[layer] * unit * unit for layer in sorted(by_layer)))


def _learning_rate(optimizer: AdamWConfig, step: int) -> float:
    if step < optimizer.warmup_steps:
        return optimizer.learning_rate * (step + 1) / optimizer.warmup_steps
    if optimizer.schedule == "constant":
        return optimizer.learning_rate
    progress = (step - optimizer.warmup_steps) / (optimizer.num_steps - optimizer.warmup_steps)
    return optimizer.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def _update(
    job: ReferenceJob, parameter: _Parameter, step: int, num_tokens: int, norm: float
) -> None:
    """Decoupled weight decay of matrices, Adam with bias correction, clipping by global norm."""
    optimizer = job.optimizer
    scale = 2.0 ** -_unit_exponent(job) / num_tokens
    if optimizer.clip_norm is not None:
        scale *= min(1.0, optimizer.clip_norm / (norm + 1e-6))
    rate = _learning_rate(optimizer, step)
    beta1, beta2 = optimizer.beta1, optimizer.beta2
    gradient = (parameter.total.double() * scale).float()
    parameter.exp_avg = parameter.exp_avg * beta1 + gradient * (1 - beta1)
    parameter.exp_avg_sq = parameter.exp_avg_sq * beta2 + gradient * gradient * (1 - beta2)
    bias_correction = 1 / math.sqrt(1 - beta2 ** (step + 1))
    # NumPy's root is rounded correctly, as IEEE 754 asks; torch's on the CPU (MKL's) is not always.
    root = torch.from_numpy(np.sqrt(parameter.exp_avg_sq.numpy()))
    denominator = root * bias_correction + optimizer.epsilon
    decay = 1 - rate * optimizer.weight_decay if parameter.value.dim() > 1 else 1.0
    change = parameter.exp_avg * (rate / (1 - beta1 ** (step + 1))) / denominator
    parameter.value = parameter.value * decay - change
    parameter.total.zero_()
    for use in parameter.uses:
        use.data.copy_(parameter.value)


def _digest(parameters: list[_Parameter], num_layers: int) -> str:
    layers: dict[int, list[_Parameter]] = {layer: [] for layer in range(num_layers)}
    for parameter in parameters:
        layers[parameter.layer].append(parameter)
    whole = hashlib.sha256()
    for layer in sorted(layers):
        digest = hashlib.sha256()
        for parameter in sorted(layers[layer], key=lambda parameter: parameter.name):
            shape = parameter.value.shape
            digest.update(parameter.name.encode("utf-8") + b"float32")
            digest.update(struct.pack(f"<{len(shape)}q", *shape))
            digest.update(parameter.value.numpy().astype("<f4").tobytes())
        whole.update(digest.digest())
    return whole.hexdigest()
