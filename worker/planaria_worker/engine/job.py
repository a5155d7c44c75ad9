"""What a job file means to an engine: model, data, optimizer and the sizes of a step."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from planaria.job import JobSpec
from planaria_common.model_sizes import ModelConfig
from planaria_worker.engine.data.dataset import Dataset, open_dataset
from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.data.order import SampleOrder
from planaria_worker.engine.exchange import ExchangeFormat
from planaria_worker.engine.numerics.accumulate import Accumulation, choose_accumulation
from planaria_worker.engine.numerics.optimizer import AdamWConfig
from planaria_worker.models.layer import Model
from planaria_worker.models.layout import LayerLayout, layer_layout
from planaria_worker.models.transformer import transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job as an engine runs it."""

    job_id: str
    model_config: ModelConfig
    model: Model
    layouts: tuple[LayerLayout, ...]
    dataset: Dataset
    order: SampleOrder
    optimizer: AdamWConfig
    accumulation: Accumulation
    num_steps: int
    num_microbatches: int
    microbatch_size: int
    seed: int
    is_reproducible: bool
    compute_dtype: torch.dtype
    device: torch.device

    @property
    def num_layers(self) -> int:
        return self.model.num_layers

    @property
    def tokens_per_microbatch(self) -> int:
        return self.microbatch_size * self.dataset.sequence_length

    @property
    def tokens_per_step(self) -> int:
        return self.num_microbatches * self.tokens_per_microbatch

    @property
    def exchange_format(self) -> ExchangeFormat:
        return ExchangeFormat(
            num_layers=self.num_layers,
            num_microbatches=self.num_microbatches,
            num_tokens=self.tokens_per_step,
            is_reproducible=self.is_reproducible,
        )


def open_job(job_id: str, job_spec: str, data_path: Path, device: torch.device) -> Job:
    """Reads a job file and opens its data.

    Args:
        job_id: the coordinator's name for it.
        job_spec: the job file, as JSON; the coordinator has checked it.
        data_path: the token file that the agent made.
        device: where this engine computes.

    Raises:
        DataError: the data cannot be used, or is not what the agent read.
        ValueError: a field is wrong; names it.
    """
    spec = JobSpec.model_validate(json.loads(job_spec))
    dataset = open_dataset(
        pattern=spec.data.path,
        tokenizer=spec.data.tokenizer,
        cache_dir=data_path.parent,
        sequence_length=spec.data.sequence_length,
        vocab_size=model_config(spec).vocab_size,
    )
    if dataset.file.path != data_path:
        raise DataError(f"data.path: {spec.data.path} has changed since the agent read it")
    return make_job(job_id, spec, dataset, device)


def make_job(job_id: str, spec: JobSpec, dataset: Dataset, device: torch.device) -> Job:
    """What a job file means for data that is open.

    Raises:
        ValueError: a field is wrong; names it.
    """
    config = model_config(spec)
    model = transformer(config)
    training = spec.training
    return Job(
        job_id=job_id,
        model_config=config,
        model=model,
        layouts=tuple(layer_layout(model, layer) for layer in range(model.num_layers)),
        dataset=dataset,
        order=SampleOrder(
            num_sequences=dataset.num_sequences,
            num_microbatches=spec.num_microbatches,
            microbatch_size=training.microbatch_size,
            seed=training.seed,
        ),
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
        compute_dtype=getattr(torch, training.dtype),
        device=device,
    )


def model_config(spec: JobSpec) -> ModelConfig:
    """The model of a job file, completed with its family's defaults."""
    return ModelConfig.create(**spec.model.model_dump())
