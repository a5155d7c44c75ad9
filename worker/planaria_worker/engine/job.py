"""What a job file means to an engine: model, data, optimizer and the sizes of a step."""

import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from planaria.job import ImportedSpec, JobSpec
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.data.dataset import Dataset, open_dataset
from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.data.order import SampleOrder
from planaria_worker.engine.evaluation import Evaluation, make_evaluation
from planaria_worker.engine.numerics.accumulate import Accumulation, choose_accumulation
from planaria_worker.engine.numerics.optimizer import AdamWConfig
from planaria_worker.models.imported import ImportedModelError, import_model
from planaria_worker.models.layer import Model
from planaria_worker.models.layout import LayerLayout, layer_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job as an engine runs it."""

    job_id: str
    model: Model
    model_config: ModelConfig | None
    """None for a model by import path."""
    model_digest: str
    """Of the source of a model by import path."""
    layouts: tuple[LayerLayout, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    """By layer, for a microbatch: hidden states, and the logits of the last."""
    dataset: Dataset
    order: SampleOrder
    optimizer: AdamWConfig
    accumulation: Accumulation
    num_steps: int
    num_microbatches: int
    microbatch_size: int
    seed: int
    is_reproducible: bool
    max_skipped_steps: int
    """How many steps in a row are skipped for gradients or losses that are not finite or too large;
    the next such step ends the job."""
    compute_dtype: torch.dtype
    activation_checkpointing: bool
    buckets_in_flight: int
    bucket_bytes: int
    device: torch.device
    evaluation: Evaluation | None = None

    @property
    def num_commits(self) -> int:
        """Return the commits of the whole job: with evaluation, a closing step follows the last."""
        return self.num_steps + (self.evaluation is not None)

    def is_closing(self, step: int) -> bool:
        """Whether a step trains nothing: it evaluates the last parameters."""
        return self.evaluation is not None and self.evaluation.plan.is_closing(step)

    @property
    def vocab_size(self) -> int:
        return self.output_shapes[-1][-1]

    def input_shape(self, layer: int) -> tuple[int, ...]:
        """Of a microbatch: token ids for the first layer, else hidden states."""
        if layer == 0:
            return self.microbatch_size, self.dataset.sequence_length
        return self.output_shapes[layer - 1]

    @property
    def num_layers(self) -> int:
        return self.model.num_layers

    @property
    def tokens_per_microbatch(self) -> int:
        return self.microbatch_size * self.dataset.sequence_length

    @property
    def tokens_per_step(self) -> int:
        return self.num_microbatches * self.tokens_per_microbatch


def open_job(
    job_id: str,
    job_spec: str,
    data_path: Path,
    device: torch.device,
    evaluation_data_path: Path | None = None,
) -> Job:
    """Reads a job file and opens its data.

    Args:
        job_id: the coordinator's name for it.
        job_spec: the job file, as JSON; the coordinator has checked it.
        data_path: the token file that the agent made.
        device: where this engine computes.
        evaluation_data_path: that of `evaluation.data`, if the job has it.

    Raises:
        DataError: the data cannot be used, or is not what the agent read.
        ValueError: a field is wrong; names it.
    """
    spec = JobSpec.model_validate(json.loads(job_spec))
    dataset = _open_dataset(spec, "data.path", spec.data.path, data_path)
    held_out = None
    if spec.evaluation is not None and spec.evaluation.data is not None:
        found = evaluation_data_path or Path()
        pattern = spec.evaluation.data.path
        held_out = _open_dataset(spec, "evaluation.data.path", pattern, found)
    return make_job(job_id, spec, dataset, device, held_out)


def _open_dataset(spec: JobSpec, field: str, pattern: str, expected: Path) -> Dataset:
    config = model_config(spec)
    dataset = open_dataset(
        pattern=pattern,
        tokenizer=spec.data.tokenizer,
        cache_dir=expected.parent,
        sequence_length=spec.data.sequence_length,
        vocab_size=None if config is None else config.vocab_size,
        field=field,
    )
    if dataset.file.path != expected:
        raise DataError(f"{field}: {pattern} has changed since the agent read it")
    return dataset


def make_job(
    job_id: str,
    spec: JobSpec,
    dataset: Dataset,
    device: torch.device,
    held_out: Dataset | None = None,
) -> Job:
    """What a job file means for data that is open; `held_out` is that of `evaluation.data`.

    Raises:
        DataError: there are not enough sequences to evaluate on.
        ValueError: a field is wrong; names it.
    """
    training = spec.training
    built = _build_model(spec, device)
    shapes = output_shapes(built.model, (training.microbatch_size, spec.data.sequence_length))
    _check_tokens(shapes[-1][-1], [data for data in (dataset, held_out) if data is not None])
    model = built.model
    evaluation = _evaluation(spec, dataset, held_out)
    return Job(
        job_id=job_id,
        model=model,
        model_config=built.config,
        model_digest=built.digest,
        layouts=tuple(layer_layout(model, layer) for layer in range(model.num_layers)),
        output_shapes=shapes,
        dataset=dataset,
        order=_sample_order(spec, dataset, evaluation if held_out is None else None),
        optimizer=AdamWConfig(
            num_steps=training.steps, **training.optimizer.model_dump(exclude={"name"})
        ),
        accumulation=choose_accumulation(
            reproducible=training.reproducible,
            tokens_per_microbatch=training.microbatch_size * spec.data.sequence_length,
            num_microbatches=spec.num_microbatches,
            has_tied_weight=model.tied is not None,
        ),
        num_steps=training.steps,
        num_microbatches=spec.num_microbatches,
        microbatch_size=training.microbatch_size,
        seed=training.seed,
        is_reproducible=training.reproducible,
        max_skipped_steps=training.max_skipped_steps,
        compute_dtype=_compute_dtype(spec),
        activation_checkpointing=training.activation_checkpointing,
        buckets_in_flight=training.buckets_in_flight,
        bucket_bytes=training.bucket_bytes,
        device=device,
        evaluation=evaluation,
    )


def _check_tokens(num_logits: int, datasets: Iterable[Dataset]) -> None:
    """Only a model by import path can have too few logits: others are checked with the data."""
    max_token = max(data.file.max_token for data in datasets)
    if max_token >= num_logits:
        raise ImportedModelError(
            f"model.import_path: the last layer gives {num_logits} logits, but the data has "
            f"token {max_token}; it must give at least {max_token + 1}"
        )


def _evaluation(spec: JobSpec, dataset: Dataset, held_out: Dataset | None) -> Evaluation | None:
    if spec.evaluation is None:
        return None
    return make_evaluation(
        spec.evaluation,
        training=dataset,
        held_out=held_out,
        num_steps=spec.training.steps,
        num_carriers=spec.num_microbatches,
        microbatch_size=spec.training.microbatch_size,
    )


def _sample_order(spec: JobSpec, dataset: Dataset, sharing: Evaluation | None) -> SampleOrder:
    """The order of training; `sharing` is the evaluation that holds out sequences of its data."""
    return SampleOrder(
        num_sequences=dataset.num_sequences if sharing is None else sharing.split.num_training,
        num_microbatches=spec.num_microbatches,
        microbatch_size=spec.training.microbatch_size,
        seed=spec.training.seed,
        sequence_at=int if sharing is None else sharing.split.training,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuiltModel:
    model: Model
    config: ModelConfig | None = None
    digest: str = ""


def _build_model(spec: JobSpec, device: torch.device) -> _BuiltModel:
    config = model_config(spec)
    if config is not None:
        from planaria_worker.models.transformer import transformer  # slow; not for imported models

        return _BuiltModel(model=transformer(config), config=config)
    assert isinstance(spec.model, ImportedSpec)  # noqa: S101 - what has no configuration
    imported = import_model(
        spec.model.import_path,
        spec.model.arguments,
        seed=spec.training.seed,
        device=device,
        dtype=_compute_dtype(spec),
    )
    return _BuiltModel(model=imported, digest=imported.source_digest)


def _compute_dtype(spec: JobSpec) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[spec.training.dtype]


def model_config(spec: JobSpec) -> ModelConfig | None:
    """The model of a job file, completed with its family's defaults; None: by import path."""
    if isinstance(spec.model, ImportedSpec):
        return None
    return ModelConfig.from_job_file(spec.model.model_dump())


def output_shapes(model: Model, input_shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """What each layer makes of a microbatch; layers that are alike are asked once."""
    known: dict[Hashable, tuple[int, ...]] = {}
    shapes = []
    shape = input_shape
    for layer in range(model.num_layers):
        is_end = layer in (0, model.num_layers - 1)
        kind = (layer if is_end else None, model.kind_of(layer), shape)
        if kind not in known:
            known[kind] = model.output_shape(layer, shape)
        shape = known[kind]
        shapes.append(shape)
    return tuple(shapes)
