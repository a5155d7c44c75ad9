"""Small jobs on real text, and what they must end with."""

from pathlib import Path
from pydoc_data import topics
from typing import Any

from planaria.job import JobSpec


def write_text(path: Path, num_bytes: int = 60_000) -> Path:
    """Write real English text (the Python documentation) and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    path.write_bytes(text.encode()[:num_bytes])
    return path


def small_job(text: Path, **changes: Any) -> JobSpec:
    """Return a job that trains a tiny model in fractions of a second per step.

    Args:
        text: the data.
        changes: `section__field=value`, over the defaults below.
    """
    spec: dict[str, Any] = {
        "name": "small",
        "model": {
            "family": "llama",
            "hidden_size": 64,
            "num_layers": 6,
            "num_heads": 2,
            "vocab_size": 256,
        },
        "data": {"path": str(text), "tokenizer": "byte", "sequence_length": 64},
        "training": {
            "steps": 20,
            "global_batch_size": 16,
            "microbatch_size": 2,
            "seed": 7,
            "optimizer": {"name": "adamw", "learning_rate": 1e-3, "warmup_steps": 5},
        },
        "resilience": {"fault_tolerance": 1},
        "resources": {"min_nodes": 1, "max_nodes": 8, "min_nodes_per_pipeline": 1},
    }
    for name, value in changes.items():
        section, _, field = name.partition("__")
        if field:
            spec[section][field] = value
        else:
            spec[section] = value
    return JobSpec.model_validate(spec)
