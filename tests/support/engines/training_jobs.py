"""Small training jobs, both as engines are given them and as the oracle runs them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.oracle.from_spec import reference_job
from benchmarks.oracle.reference import ReferenceJob, ReferenceResult, train
from planaria.job import JobSpec
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
