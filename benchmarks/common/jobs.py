"""Jobs to measure and to test: one that computes, one that is paced, one paced with brief steps."""

from collections.abc import Mapping
from pathlib import Path
from pydoc_data import topics
from typing import Any, Literal, get_args

from planaria.job import JobSpec

Computation = Literal["real", "paced", "brief"]
COMPUTATIONS: tuple[Computation, ...] = get_args(Computation)

SEQUENCE_LENGTH = 64
NUM_MICROBATCHES = 12
MICROBATCH_SIZE = 2

_REAL = {
    "family": "llama",
    "hidden_size": 128,
    "num_layers": 8,
    "num_heads": 4,
    "vocab_size": 256,
}
PACED_ARGUMENTS = {
    "num_blocks": 8,
    "hidden_size": 64,
    "forward_seconds": 0.006,
    "backward_seconds": 0.012,
}
_PACED = {"import_path": "benchmarks.common.paced:layers", "arguments": PACED_ARGUMENTS}
_BRIEF = {
    "import_path": "benchmarks.common.paced:layers",
    "arguments": {**PACED_ARGUMENTS, "forward_seconds": 0.0005, "backward_seconds": 0.001},
}
_MODELS: Mapping[Computation, Mapping[str, Any]] = {
    "real": _REAL,
    "paced": _PACED,
    "brief": _BRIEF,
}


def job(
    computation: Computation, text: Path, *, steps: int, seed: int, **resources: Any
) -> JobSpec:
    """Return a job that trains in reproducible mode and survives one node, in pipelines of two.

    Args:
        computation: what takes the time of a step.
        text: its data.
        steps: how many it trains.
        seed: of parameters and order of data.
        resources: further fields of the section.
    """
    return JobSpec.model_validate(
        {
            "name": f"{computation}-{seed}",
            "model": _MODELS[computation],
            "data": {"path": str(text), "tokenizer": "byte", "sequence_length": SEQUENCE_LENGTH},
            "training": {
                "steps": steps,
                "global_batch_size": NUM_MICROBATCHES * MICROBATCH_SIZE,
                "microbatch_size": MICROBATCH_SIZE,
                "seed": seed,
                "optimizer": {"name": "adamw", "learning_rate": 1e-3, "warmup_steps": 5},
            },
            "resilience": {"fault_tolerance": 1},
            "resources": {"min_nodes_per_pipeline": 2, **resources},
        }
    )


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
