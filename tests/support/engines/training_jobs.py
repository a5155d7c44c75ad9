"""Small training jobs, both as engines are given them and as the oracle runs them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.oracle.from_spec import reference_job
from benchmarks.oracle.reference import ReferenceJob, ReferenceResult, train
from planaria.job import JobSpec
from planaria_worker.engine.data.order import SampleOrder
from support.engines.small_plans import JobFiles

TEXT = "".join(f"{number} planarians make {number * number} heads.\n" for number in range(99))


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One job in both forms."""

    files: JobFiles
    reference: ReferenceJob

    def run_reference(self) -> ReferenceResult:
        """With one thread, as engines: bits depend on it."""
        torch.set_num_threads(1)
        return train(self.reference)


def training_job(
    folder: Path,
    *,
    family: str = "llama",
    num_blocks: int = 5,
    num_steps: int = 5,
    num_microbatches: int = 6,
    reproducible: bool = True,
    max_skipped_steps: int = 10,
    learning_rate: float = 1e-3,
    clip_norm: float = 0.5,
    dtype: str = "float32",
    activation_checkpointing: bool = False,
    own_model: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    **model: Any,
) -> TrainingJob:
    """A job of `num_blocks` + 2 small layers, or of another `model` section of a job file.

    Writes its data into the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(TEXT)
    spec = JobSpec.model_validate(
        {
            "model": own_model or _model_section(family, num_blocks, model),
            "data": {"path": str(folder / "*.txt"), "sequence_length": 24},
            "evaluation": evaluation,
            "training": {
                "steps": num_steps,
                "global_batch_size": 2 * num_microbatches,
                "microbatch_size": 2,
                "seed": 7,
                "dtype": dtype,
                "activation_checkpointing": activation_checkpointing,
                "reproducible": reproducible,
                "max_skipped_steps": max_skipped_steps,
                "optimizer": {
                    "learning_rate": learning_rate,
                    "warmup_steps": 2,
                    "clip_norm": clip_norm,
                },
            },
        }
    )
    reference = reference_job(spec, folder / "cache")
    files = JobFiles(
        spec=spec.to_document(),
        data_path=reference.dataset.file.path,
        num_layers=num_blocks + 2,
        is_tied=reference.tied is not None,
        evaluation_data_path=_evaluation_data_path(reference),
    )
    return TrainingJob(files=files, reference=reference)


def spoiled_job(
    folder: Path,
    spoiled: Iterable[tuple[int, int]],
    *,
    place: str = "forward",
    is_tied: bool = False,
    **options: Any,
) -> TrainingJob:
    """A job of seven layers that has infinite gradients in some microbatches of some steps.

    Those are known by their tokens, hence wherever and however often they are computed.
    """
    arguments = {
        "microbatches": tokens_of(training_job(folder, **options).reference, spoiled),
        "place": place,
        "is_tied": is_tied,
    }
    own_model = {"import_path": "support.own_model:spoiled_layers", "arguments": arguments}
    return training_job(folder, own_model=own_model, **options)


def tokens_of(job: ReferenceJob, microbatches: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The tokens of microbatches, each given by its step and its number there."""
    order = SampleOrder(
        num_sequences=job.dataset.num_sequences,
        num_microbatches=job.num_microbatches,
        microbatch_size=job.microbatch_size,
        seed=job.seed,
    )
    rows = [job.dataset.rows(order.microbatch(step, index)) for step, index in microbatches]
    return [row[:, :-1].flatten().tolist() for row in rows]


def _model_section(family: str, num_blocks: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"hidden_size": 32, "num_heads": 4, "vocab_size": 256, "max_position_embeddings": 32}
    if family != "gpt2":
        fields["num_key_value_heads"] = 2
    return {"family": family, "num_layers": num_blocks, **fields, **changes}


def _evaluation_data_path(job: ReferenceJob) -> Path | None:
    """The token file of a text of its own to evaluate on."""
    evaluation = job.evaluation
    if evaluation is None or evaluation.dataset is job.dataset:
        return None
    return evaluation.dataset.file.path
