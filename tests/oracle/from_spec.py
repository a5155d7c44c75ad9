"""The plain loop's job from a job file, so that the two can be compared."""

from pathlib import Path

import torch

from oracle.reference import ReferenceJob
from planaria.job import ImportedSpec, JobSpec
from planaria_common.model_sizes import ModelConfig
from planaria_worker.engine.data.dataset import open_dataset
from planaria_worker.engine.numerics.optimizer import AdamWConfig


def reference_job(spec: JobSpec, cache_dir: Path) -> ReferenceJob:
    """Return the same job for one process without pipelines, communication or failures."""
    model: ModelConfig | ImportedSpec
    if isinstance(spec.model, ImportedSpec):
        model, vocab_size = spec.model, None
    else:
        model = ModelConfig.from_job_file(spec.model.model_dump())
        vocab_size = model.vocab_size
    optimizer = spec.training.optimizer
    return ReferenceJob(
        model=model,
        dtype=getattr(torch, spec.training.dtype),
        dataset=open_dataset(
            pattern=spec.data.path,
            tokenizer=spec.data.tokenizer,
            cache_dir=cache_dir,
            sequence_length=spec.data.sequence_length,
            vocab_size=vocab_size,
        ),
        num_steps=spec.training.steps,
        num_microbatches=spec.num_microbatches,
        microbatch_size=spec.training.microbatch_size,
        seed=spec.training.seed,
        optimizer=AdamWConfig(
            learning_rate=optimizer.learning_rate,
            num_steps=spec.training.steps,
            warmup_steps=optimizer.warmup_steps,
            schedule=optimizer.schedule,
            weight_decay=optimizer.weight_decay,
            clip_norm=optimizer.clip_norm,
        ),
    )
