"""Small training jobs, both as engines are given them and as the oracle runs them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle.reference import ReferenceJob, ReferenceResult, train
from planaria.job import JobSpec
from planaria_worker.engine.data.dataset import open_dataset
from planaria_worker.engine.job import model_config
from planaria_worker.engine.numerics.optimizer import AdamWConfig
from support.engine_harness import JobFiles

TEXT = "".join(f"{number} planarians make {number * number} heads.\n" for number in range(99))


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One job in both forms."""

    files: JobFiles
    reference: ReferenceJob

    def run_reference(self) -> ReferenceResult:
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
    **model: Any,
) -> TrainingJob:
    """A job of `num_blocks` + 2 small layers; writes its data into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(TEXT)
    fields = {"hidden_size": 32, "num_heads": 4, "vocab_size": 256, "max_position_embeddings": 32}
    if family != "gpt2":
        fields["num_key_value_heads"] = 2
    spec = JobSpec.model_validate(
        {
            "model": {"family": family, "num_layers": num_blocks, **fields, **model},
            "data": {"path": str(folder / "*.txt"), "sequence_length": 24},
            "training": {
                "steps": num_steps,
                "global_batch_size": 2 * num_microbatches,
                "microbatch_size": 2,
                "seed": 7,
                "reproducible": reproducible,
                "optimizer": {
                    "learning_rate": learning_rate,
                    "warmup_steps": 2,
                    "clip_norm": clip_norm,
                },
            },
        }
    )
    config = model_config(spec)
    dataset = open_dataset(
        pattern=spec.data.path,
        tokenizer="byte",
        cache_dir=folder / "cache",
        sequence_length=24,
        vocab_size=256,
    )
    optimizer = AdamWConfig(
        num_steps=num_steps, **spec.training.optimizer.model_dump(exclude={"name"})
    )
    return TrainingJob(
        files=JobFiles(
            spec=spec.to_document(), data_path=dataset.file.path, num_layers=config.num_layers
        ),
        reference=ReferenceJob(
            model=config,
            dataset=dataset,
            num_steps=num_steps,
            num_microbatches=num_microbatches,
            microbatch_size=2,
            seed=7,
            optimizer=optimizer,
        ),
    )
