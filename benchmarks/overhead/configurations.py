"""What is trained: a model that computes, and one that sleeps."""

import pydoc_data.topics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from planaria.job import JobSpec
from planaria_worker.engine.data.dataset import open_dataset
from planaria_worker.engine.job import Job, make_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A job for all variants alike: pipelines of equal stages, and an equal part of each step."""

    name: str
    description: str
    model: dict[str, Any]
    """The section of the job file."""
    num_pipelines: int = 2
    num_stages: int = 2
    """Of each pipeline."""
    sequence_length: int = 128
    microbatch_size: int = 2
    num_microbatches: int = 8
    """Of a step, over all pipelines together."""
    buckets_in_flight: int = 4
    bucket_bytes: int = 8 << 20
    optimizer: dict[str, Any] = field(
        default_factory=lambda: {"learning_rate": 1e-4, "clip_norm": 1.0}
    )

    @property
    def num_ranks(self) -> int:
        return self.num_pipelines * self.num_stages

    @property
    def bytes_in_flight(self) -> int:
        return self.buckets_in_flight * self.bucket_bytes

    @property
    def tokens_per_microbatch(self) -> int:
        return self.microbatch_size * self.sequence_length

    def job(self, folder: Path, *, reproducible: bool) -> Job:
        """Return the job as an engine reads it; the text is in the folder."""
        dataset = open_dataset(
            pattern=str(folder / "*.txt"),
            tokenizer="byte",
            cache_dir=folder / "cache",
            sequence_length=self.sequence_length,
            vocab_size=256,
        )
        spec = JobSpec.model_validate(
            {
                "model": self.model,
                "data": {"path": str(folder / "*.txt"), "sequence_length": self.sequence_length},
                "training": {
                    "steps": 1_000_000,
                    "global_batch_size": self.num_microbatches * self.microbatch_size,
                    "microbatch_size": self.microbatch_size,
                    "seed": 7,
                    "reproducible": reproducible,
                    "buckets_in_flight": self.buckets_in_flight,
                    "bucket_bytes": self.bucket_bytes,
                    "optimizer": self.optimizer,
                },
            }
        )
        return make_job("overhead", spec, dataset, torch.device("cpu"))


LLAMA = {
    "family": "llama",
    "hidden_size": 256,
    "num_layers": 8,
    "num_heads": 8,
    "vocab_size": 256,
}

CONFIGURATIONS = {
    configuration.name: configuration
    for configuration in (
        Configuration(
            name="real",
            description="A llama of 8 blocks, 256 wide, that computes. With fewer cores than "
            "ranks, ranks share them, so overlap is not free.",
            model=LLAMA,
        ),
        Configuration(
            name="deep",
            description="The same llama in one pipeline of four stages, with small microbatches: "
            "apart from arithmetic, a step is mostly the schedule's own work, and no sums cross "
            "pipelines.",
            model=LLAMA,
            num_pipelines=1,
            num_stages=4,
            microbatch_size=1,
        ),
        Configuration(
            name="paced",
            description="8 blocks with the parameters of a transformer 256 wide, which sleep 5 ms "
            "forward and 10 ms backward as if each rank had an accelerator, so overlap is free. "
            "Rounding, sums, sends and updates are computed.",
            model={
                "import_path": "benchmarks.overhead.paced:layers",
                "arguments": {
                    "num_blocks": 8,
                    "hidden_size": 256,
                    "forward_seconds": 0.005,
                    "backward_seconds": 0.010,
                },
            },
        ),
    )
}


def write_text(folder: Path) -> None:
    """Write the text that is trained on, which every Python has."""
    topics: dict[str, str] = pydoc_data.topics.topics
    (folder / "text.txt").write_text("\n".join(topics[name] for name in sorted(topics)))
