"""Small models and jobs for tests."""

from pathlib import Path

import torch

from benchmarks.oracle.reference import ReferenceJob
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.data.dataset import Dataset, open_dataset
from planaria_worker.engine.numerics.optimizer import AdamWConfig
from planaria_worker.models.state import LayerState, initial_state
from planaria_worker.models.transformer import transformer

NUM_LAYERS = 5
"""Of a small model: the embedding, three blocks and the head."""


def small_model(family: str, **changes: object) -> ModelConfig:
    """A model of a family, with grouped queries where the family has them."""
    fields: dict[str, object] = {
        "hidden_size": 32,
        "num_layers": NUM_LAYERS - 2,
        "num_heads": 4,
        "vocab_size": 256,
        "max_position_embeddings": 32,
        **({} if family == "gpt2" else {"num_key_value_heads": 2}),
        **changes,
    }
    return ModelConfig.create(family=family, **fields)  # type: ignore[arg-type]


def initial_states(
    config: ModelConfig, seed: int = 7, dtype: torch.dtype = torch.float32
) -> dict[int, LayerState]:
    """The initial state of every layer."""
    model = transformer(config)
    return {
        layer: initial_state(model, layer, seed=seed, compute_dtype=dtype)
        for layer in range(model.num_layers)
    }


def small_dataset(folder: Path) -> Dataset:
    """Some regular text in sequences of 24 bytes; writes into the folder."""
    text = "".join(f"{number} planarians make {number * number} heads.\n" for number in range(99))
    (folder / "text.txt").write_text(text)
    return open_dataset(
        pattern=str(folder / "*.txt"),
        tokenizer="byte",
        cache_dir=folder / "cache",
        sequence_length=24,
        vocab_size=256,
    )


def small_job(folder: Path, model: ModelConfig) -> ReferenceJob:
    """Four steps of three microbatches on some regular text."""
    return ReferenceJob(
        model=model,
        dataset=small_dataset(folder),
        num_steps=4,
        num_microbatches=3,
        microbatch_size=2,
        seed=7,
        optimizer=AdamWConfig(
            learning_rate=1e-3, num_steps=4, warmup_steps=2, weight_decay=0.1, clip_norm=0.5
        ),
    )
