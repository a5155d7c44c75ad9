"""The plain loop's job from a job file, so that the two can be compared."""

from pathlib import Path

import torch

from benchmarks.oracle.reference import (
    ReferenceEvaluation,
    ReferenceJob,
    ReferenceResult,
    train,
)
from planaria.job import ImportedSpec, JobSpec
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.data.dataset import Dataset, open_dataset
from planaria_worker.engine.data.held_out import Split, split_dataset
from planaria_worker.engine.numerics.optimizer import AdamWConfig
from planaria_worker.engine.numerics.pins import pin_numerics


def reference_run(spec: JobSpec, cache_dir: Path) -> ReferenceResult:
    """Train a job in this process, undisturbed, with the engines' numerics."""
    pin_numerics()
    return train(reference_job(spec, cache_dir))


def reference_job(spec: JobSpec, cache_dir: Path) -> ReferenceJob:
    """Return the same job for one process without pipelines, communication or failures."""
    model: ModelConfig | ImportedSpec
    if isinstance(spec.model, ImportedSpec):
        model, vocab_size = spec.model, None
    else:
        model = ModelConfig.from_job_file(spec.model.model_dump())
        vocab_size = model.vocab_size

    def open_text(pattern: str) -> Dataset:
        return open_dataset(
            pattern=pattern,
            tokenizer=spec.data.tokenizer,
            cache_dir=cache_dir,
            sequence_length=spec.data.sequence_length,
            vocab_size=vocab_size,
        )

    optimizer = spec.training.optimizer
    dataset = open_text(spec.data.path)
    evaluated, held_out = dataset, None
    if spec.evaluation is not None and spec.evaluation.data is not None:
        evaluated = open_text(spec.evaluation.data.path)
    elif spec.evaluation is not None:
        held_out = split_dataset(dataset, spec.evaluation.fraction or 1.0)
    return ReferenceJob(
        model=model,
        dtype=getattr(torch, spec.training.dtype),
        dataset=dataset,
        held_out=held_out,
        evaluation=_evaluation(spec, evaluated, held_out or split_dataset(evaluated)),
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


def _evaluation(spec: JobSpec, dataset: Dataset, split: Split) -> ReferenceEvaluation | None:
    if spec.evaluation is None:
        return None
    count = spec.evaluation.num_sequences or split.num_held_out
    count -= count % spec.training.microbatch_size
    return ReferenceEvaluation(
        every_steps=spec.evaluation.every_steps,
        dataset=dataset,
        sequences=[split.held_out(position) for position in range(count)],
    )
